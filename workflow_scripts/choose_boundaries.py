"""Choose the bucket boundaries."""

from dflash.store.stage import Stage, run_stage

SETTINGS = (
    "batching.budget_tokens",
    "batching.attention_tokens",
    "batching.memory_tokens",
    "batching.num_buckets",
    "batching.max_buckets",
    "batching.shape_price",
    "batching.micro_batch_price",
    "batching.drafter_context_price",
    "batching.boundaries",
    "batching.alignment",
    "batching.zero_length",
)


def work(stage: Stage) -> None:
    """Write boundaries.json."""
    import json

    import polars as pl

    from dflash.batching.choose import Choice, choose_boundaries
    from dflash.batching.cost import Limits, Price
    from dflash.batching.histogram import total

    settings = stage.settings["batching"]
    limits = Limits(settings["budget_tokens"], settings["attention_tokens"], settings["memory_tokens"])
    names = ("num_buckets", "max_buckets", "shape_price", "boundaries", "alignment", "zero_length")
    choice = Choice(
        Price(limits, settings["micro_batch_price"], settings["drafter_context_price"]),
        **{name: settings[name] for name in names},
    )
    lengths, samples, _ = total(pl.read_parquet(stage.inputs["measure_lengths"] / "histogram.parquet"))
    chosen = choose_boundaries(lengths, samples, choice)
    for note in chosen["notes"]:
        print(f"choose_boundaries: {note}")
    (stage.folder / "boundaries.json").write_text(json.dumps(chosen, indent=1) + "\n")


if __name__ == "__main__":
    run_stage(work)
