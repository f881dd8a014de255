"""Build the plan of all batches, say how good it is, and compare the policies."""

from dflash.store.stage import Stage, run_stage

SETTINGS = (
    "batching.policy",
    "batching.seed",
    "batching.budget_tokens",
    "batching.attention_tokens",
    "batching.memory_tokens",
    "batching.budget_anchors",
    "batching.alignment",
    "batching.cells_per_step",
    "batching.pool_batches",
    "batching.pack_window",
    "batching.zero_length",
    "batching.tables",
    "anchors.share",
    "anchors.max_per_sample",
    "anchors.max_per_micro_batch",
)


def work(stage: Stage) -> None:
    """Write plan.json, the arrays, the first epochs' tables, quality.json and policies.parquet."""
    import json

    import polars as pl

    from dflash.batching.describe import describe_plan
    from dflash.batching.description import PlanConfig
    from dflash.batching.plan import make_plan, save_plan
    from dflash.batching.policies import compare_policies, policies_text

    settings, anchors = dict(stage.settings["batching"]), stage.settings["anchors"]
    num_tables = settings.pop("tables")
    config = PlanConfig(
        **settings, anchor_share=anchors["share"], anchors_per_sample=anchors["max_per_sample"]
    )
    table = pl.read_parquet(stage.inputs["measure_lengths"] / "lengths.parquet")
    lengths_N, supervised_N = table["length"].to_numpy(), table["supervised"].to_numpy()
    widths = json.loads((stage.inputs["choose_boundaries"] / "boundaries.json").read_text())["widths"]
    plan = make_plan(lengths_N, supervised_N, config, widths)
    save_plan(plan, stage.folder)
    quality, tables = describe_plan(plan, lengths_N, supervised_N, num_tables, anchors["max_per_micro_batch"])
    for epoch, each in enumerate(tables):
        each.write_parquet(stage.folder / f"epoch-{epoch:04d}.parquet")
    (stage.folder / "quality.json").write_text(json.dumps(quality, indent=1) + "\n")
    policies = compare_policies(lengths_N, supervised_N, config, widths)
    policies.write_parquet(stage.folder / "policies.parquet")
    print(policies_text(policies))


if __name__ == "__main__":
    run_stage(work)
