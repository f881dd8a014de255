"""Measure target and drafter alone and advise on the topology. `python -m dflash fresh measure_rates` measures again."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ("target", "target_loading", "drafter", "anchors", "objective", "training", "machine")


def work(stage: Stage) -> None:
    """Write splits.parquet, rates.json and the recommendation, all measured, and print the table."""
    import dataclasses
    import json

    import numpy as np
    import polars as pl

    from dflash.config.runtime import Runtime
    from dflash.model.device import device_of
    from dflash.planning.advice import all_splits, recommend
    from dflash.planning.rates import measure
    from dflash.training.job import SECTIONS, Job
    from dflash.transfer.roles import Topology

    runtime = Runtime.model_validate(stage.runtime, strict=False)
    job = Job(
        target=stage.settings["target"],
        **{
            name: section.model_validate(stage.settings[name], strict=False)
            for name, section in SECTIONS.items()
            if name != "runtime"
        },
        runtime=runtime,
        shards=[
            path for folder in stage.inputs["encode"].values() for path in sorted(folder.glob("*.arrow"))
        ],
        plan=stage.inputs["build_plan"],
        start_from=None,
        state=stage.state.absolute(),
        result=stage.folder.absolute(),
    )
    measured = measure(job)
    num_gpus = max(Topology.parse(runtime.topology).num_ranks, runtime.num_gpus or 2)
    splits = all_splits(measured.rates, measured.stretch, num_gpus, measured.total_tokens, measured.rings)
    chosen, why = recommend(splits)
    table = pl.DataFrame([each.row() for each in splits], infer_schema_length=None)
    folder = stage.folder / "measured"
    folder.mkdir()
    table.write_parquet(folder / "splits.parquet")
    rates = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in dataclasses.asdict(measured.rates).items()
    }
    record = {"machine": measured.machine, "recommended": chosen.topology, "why": why, "rates": rates}
    (folder / "rates.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"measured on {measured.machine}")
    for each in splits:
        power = (
            "power unknown"
            if each.watts is None
            else f"{each.watts:7,.0f} W  {each.kilowatt_hours:9,.2f} kWh"
        )
        print(
            f"{each.topology:26} {each.tokens_per_second:10,.0f} useful tokens/s  idle: targets {each.target_idle_share:4.0%} "
            f"drafters {each.drafter_idle_share:4.0%}  {each.days:8.3f} days  {power}"
        )
    print(f"recommended: {why}")
    if device_of(runtime.device).type == "cpu":
        print("on a CPU ranks share the cores: splits of several ranks are slower than shown here")


if __name__ == "__main__":
    run_stage(work)
