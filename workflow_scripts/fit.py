"""Train the drafter: in this process for one rank, else by torchrun's launcher on as many ranks as the topology has."""

import sys

from dflash.store.stage import Stage, run_stage

SETTINGS = ("target", "target_loading", "drafter", "anchors", "objective", "training")


def work(stage: Stage) -> None:
    """Leave drafter.safetensors, drafter.json, fit.json and the tables; exits with 75 where the time limit is near."""
    from pathlib import Path

    from dflash.config.runtime import Runtime
    from dflash.training.job import SECTIONS, Job
    from dflash.training.launch import launch

    settings = stage.settings
    start = settings["training"]["start_from"]
    fit = stage.inputs.get("start_from")
    sections = {
        name: section.model_validate(settings[name], strict=False)
        for name, section in SECTIONS.items()
        if name != "runtime"
    }
    job = Job(
        target=settings["target"],
        **sections,
        runtime=Runtime.model_validate(stage.runtime, strict=False),
        shards=[
            path for folder in stage.inputs["encode"].values() for path in sorted(folder.glob("*.arrow"))
        ],
        plan=stage.inputs["build_plan"],
        start_from=fit if fit is not None else Path(start) if start else None,
        state=stage.state.absolute(),
        result=stage.folder.absolute(),
    )
    if status := launch(job):
        sys.exit(status)


if __name__ == "__main__":
    run_stage(work)
