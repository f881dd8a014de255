"""Histogram the lengths of all samples."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ()


def work(stage: Stage) -> None:
    """Write histogram.parquet and lengths.parquet."""
    from dflash.batching.histogram import measure

    shards = {source: sorted(folder.glob("*.arrow")) for source, folder in stage.inputs["encode"].items()}
    histogram, lengths = measure(shards)
    histogram.write_parquet(stage.folder / "histogram.parquet")
    lengths.write_parquet(stage.folder / "lengths.parquet")


if __name__ == "__main__":
    run_stage(work)
