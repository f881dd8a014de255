"""Decode held-out prompts with the trained drafter and the baselines, checked against plain decoding."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ("evaluation", "target", "target_loading", "training.seed")


def work(stage: Stage) -> None:
    """Write evaluation.json, acceptance.parquet, positions.parquet, decodes.jsonl and the measured speed."""
    from dflash.data.shards import Shards
    from dflash.evaluation.job import Job, run_job

    settings = stage.settings["evaluation"]
    shards = {
        source: Shards(sorted(folder.glob("*.arrow")), "test")
        for source, folder in stage.inputs["encode"].items()
    }
    job = Job(
        target=stage.settings["target"],
        loading={**stage.settings["target_loading"], "dtype": settings["dtype"]},
        drafter_folder=stage.inputs["fit"],
        device=stage.runtime.get("device", "auto"),
        untrained_seed=stage.settings["training"]["seed"],
        num_prompts=settings["num_prompts"],
        max_new_tokens=settings["max_new_tokens"],
        temperatures=tuple(settings["temperatures"]),
        batch_size=settings["batch_size"],
        baselines=tuple(settings["baselines"]),
        seed=settings["seed"],
    )
    run_job(job, shards, stage.folder)


if __name__ == "__main__":
    run_stage(work)
