"""Draw the page of an experiment."""

from dflash.store.stage import Stage, run_stage

SETTINGS = (
    "experiment",
    "target",
    "target_loading",
    "data",
    "regeneration",
    "batching",
    "drafter",
    "anchors",
    "objective",
    "training",
    "evaluation",
    "export",
    "report",
)


def work(stage: Stage) -> None:
    """Write report.html, and its figures as SVG and PNG."""
    from dflash.report.experiment_page import Experiment, draw_experiment_page
    from dflash.store.reason import versions

    settings = {name: value for name, value in stage.settings.items() if name != "experiment"}
    experiment = Experiment(
        name=stage.experiment,
        settings=settings,
        stages=stage.inputs,
        manifests={name: stage.manifest(name) for name in stage.inputs},
        versions=versions(),
    )
    draw_experiment_page(experiment, stage.folder)


if __name__ == "__main__":
    run_stage(work)
