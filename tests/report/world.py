"""A tiny finished experiment: the folders of all its stages, with exactly the columns that the other rooms write."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dflash.batching.describe import describe_plan
from dflash.batching.plan import PlanConfig, make_plan
from dflash.report.experiment_page import Experiment

WIDTHS = [64, 128, 256, 512]
HOSTILE = "<script>alert('x')</script> & \"quoted\" $x_1$ \ud800 \x07 日本語"


def write_world(
    root: Path, *, seed: int = 0, steps: int = 96, energy: bool = True, worse: float = 0.0, name: str = "tiny"
) -> Experiment:
    """Write every table that the pages read.

    Args:
        root: gets a folder a stage.
        seed: of all that is random.
        steps: of the training.
        energy: whether the energy counter was readable.
        worse: nats added to the held-out loss, and taken from the acceptance length.
        name: of the experiment.
    """
    rng = np.random.default_rng(seed)
    stages = {
        each: root / each
        for each in ("measure_lengths", "choose_boundaries", "build_plan", "run_preflight", "fit", "evaluate")
    }
    for folder in stages.values():
        (folder / "measured").mkdir(parents=True)
    _write_lengths(stages["measure_lengths"], rng)
    _write_boundaries(stages["choose_boundaries"])
    _write_plan(stages["build_plan"], rng)
    _write_preflight(stages["run_preflight"])
    _write_fit(stages["fit"], rng, steps, energy, worse)
    _write_evaluation(stages["evaluate"], rng, worse)
    manifests = {
        each: {"stage": each, "key": "0" * 64, "content": "1" * 64, "format": 1, "files": {}}
        for each in stages
    }
    return Experiment(
        name=name, settings=settings(), stages=stages, manifests=manifests, versions={"numpy": "2"}
    )


def settings() -> dict[str, Any]:
    """Nested settings as a page gets them."""
    return {
        "target": "demo",
        "data": {"sources": [{"name": "stdlib", "location": f"/data/{HOSTILE[:40]}"}]},
        "batching": {"policy": "bucketed", "seed": 0},
        "training": {"clip_norm": 1.0, "seed": 0, "learning_rate": 0.01},
        "anchors": {"seed": 0},
        "report": {"title": None, "sample_decodes": 2},
    }


def _write_lengths(folder: Path, rng: np.random.Generator) -> None:
    length, samples = np.unique(
        np.clip(np.exp(rng.normal(4.5, 0.8, 4000)), 4, 512).astype(int), return_counts=True
    )
    table = pl.DataFrame(
        {"length": length.astype(np.int32), "samples": samples, "supervised": samples * length // 2}
    )
    splits = [table.with_columns(source=pl.lit("stdlib"), split=pl.lit(split)) for split in ("train", "test")]
    pl.concat(splits).select("source", "split", "length", "samples", "supervised").write_parquet(
        folder / "histogram.parquet"
    )


def _write_boundaries(folder: Path) -> None:
    curve = [
        {"num_buckets": k, "efficiency": 1 - 0.5 / k, "equal_width": 1 - 0.8 / k, "quantile": 1 - 0.7 / k, "equal_token": 1 - 0.6 / k,
         "closed_form": 1 - 0.5 / k, "price": 1.0}
        for k in range(1, 9)
    ]  # fmt: skip
    record = {"widths": WIDTHS, "rows": [16, 8, 4, 2], "efficiency": 0.875, "chosen_by": "batching.shape_price", "notes": ["a <note>"],
              "curve": curve}  # fmt: skip
    (folder / "boundaries.json").write_text(json.dumps(record))


def _write_plan(folder: Path, rng: np.random.Generator) -> None:
    step = np.repeat(np.arange(24), 4)
    bucket = rng.integers(0, 4, len(step))
    width = np.array(WIDTHS)[bucket]
    rows = 1024 // width
    useful = (rows * width * 0.9).astype(int)
    pl.DataFrame(
        {"step": step, "cell": np.tile(np.arange(4), 24), "bucket": bucket, "rows": rows, "width": width, "samples": rows,
         "useful_tokens": useful, "padded_tokens": rows * width, "anchors": useful // 4}
    ).write_parquet(folder / "epoch-0000.parquet")  # fmt: skip
    pl.DataFrame(
        {
            "policy": ["bucketed", "pooled", "packed", "sorted", "random"],
            "padding_efficiency": [0.9, 0.93, 0.97, 0.99, 0.5],
            "variance_between_steps": [0.05, 0.06, 0.02, 1.0, 0.2],
            "lift": [3.0, 12.0, 1.0, None, 1.0],
            "recommended": [True, False, False, False, False],
            "reason": ["random batches cost 80% more", None, None, None, None],
        }
    ).write_parquet(folder / "policies.parquet")
    lengths = np.arange(8, 264, dtype=np.int32)
    config = PlanConfig(policy="bucketed", budget_tokens=1024, alignment=1)
    plan = make_plan(lengths, lengths // 2, config, WIDTHS)
    quality, _ = describe_plan(plan, lengths, lengths // 2, 1, 1 << 62)
    quality |= {"plan_id": "ab" * 32, "steps": 24, "shapes": 4, "padding_efficiency": 0.9}
    (folder / "quality.json").write_text(json.dumps(quality))


def _write_preflight(folder: Path) -> None:
    findings = [
        {"name": "disk", "ok": True, "found": "9 GB free <here>", "remedy": "free space"},
        {"name": "clock", "ok": False, "found": "it is 1970", "remedy": "set the <clock>"},
    ]
    (folder / "measured" / "preflight.json").write_text(json.dumps(findings))


def _write_fit(folder: Path, rng: np.random.Generator, steps: int, energy: bool, worse: float) -> None:
    step = np.arange(1, steps + 1)
    bucket = rng.integers(0, 4, (steps, 4))
    width = np.array(WIDTHS)[bucket]
    weight = rng.uniform(50, 150, bucket.shape)
    cell_loss = (2 + 3 * np.exp(-step / 20))[:, None] - 0.3 * bucket + rng.normal(0, 0.05, bucket.shape)
    rows = 1024 // width
    useful = (rows * width * 0.9).astype(int)
    pl.DataFrame(
        {"step": step, "epoch": (step - 1) // 24, "loss": (cell_loss * weight).sum(axis=1) / weight.sum(axis=1),
         "grad_norm": np.exp(rng.normal(0, 0.2, steps)), "learning_rate": np.linspace(0.01, 0, steps),
         "useful_tokens": useful.sum(axis=1), "padded_tokens": (rows * width).sum(axis=1), "samples": rows.sum(axis=1),
         "anchors": useful.sum(axis=1) // 4, "cut_anchors": 0, "supervised_slots": useful.sum(axis=1), "skipped": False}
    ).write_parquet(folder / "metrics.parquet")  # fmt: skip
    pl.DataFrame(
        {"step": np.repeat(step, 4), "cell": np.tile(np.arange(4), steps), "bucket": bucket.ravel(), "width": width.ravel(),
         "rows": rows.ravel(), "useful_tokens": useful.ravel(), "anchors": useful.ravel() // 4,
         "loss_sum": (cell_loss * weight).ravel(), "weight": weight.ravel()}
    ).write_parquet(folder / "cells.parquet")  # fmt: skip
    at = np.arange(24, steps + 1, 24)
    progress = 1 - np.exp(-at / 30)
    pl.DataFrame(
        {"step": at, "loss": 5 - 3 * progress + worse + rng.normal(0, 0.02), "acceptance": 1 + 1.5 * progress - worse}
        | {f"acc_slot_{k}": 0.7 * progress * 0.9**k for k in range(1, 8)}
    ).write_parquet(folder / "heldout.parquet")  # fmt: skip
    size = np.arange(24) * 7 + 10
    samples = np.random.default_rng(5).normal(2.0, 0.8, 24) + worse + rng.normal(0, 0.02, 24)
    pl.DataFrame(
        {"sample": [f"{k:016x}" for k in range(24)], "loss_sum": samples * size, "slots": size, "acceptance": 2.5}
    ).write_parquet(folder / "heldout_samples.parquet")  # fmt: skip
    pl.DataFrame({"step": step, "seconds": rng.uniform(0.9, 1.1, steps)}).write_parquet(
        folder / "measured" / "seconds.parquet"
    )
    run = {
        "topologies": [[0, "targets: 1, drafters: 1"]],
        "ranks": [machine(rank, role) for rank, role in ((0, "target"), (1, "drafter"))],
    }
    (folder / "measured" / "run.json").write_text(json.dumps(run))
    ranks = [
        {"step": int(each), "rank": rank, "role": role, "busy_seconds": 0.6, "blocked_empty_seconds": 0.3, "blocked_full_seconds": 0.1,
         "queued_bytes": 1e6, "energy_joules": 50.0 + rank if energy else None, "memory_bytes": 10**9}
        for each in step for rank, role in ((0, "target"), (1, "drafter"))
    ]  # fmt: skip
    schema = {"energy_joules": pl.Float64}
    pl.DataFrame(ranks, schema_overrides=schema).write_parquet(folder / "measured" / "ranks.parquet")


def machine(rank: int, role: str, **changes: Any) -> dict[str, Any]:
    """What a rank says of its machine."""
    known = {
        "rank": rank,
        "role": role,
        "device": f"Planted <{role}>",
        "peak_flops": 1e12,
        "target_weights": 500_000,
        "context_weights": 10_000,
        "block_weights": 40_000,
        "head_weights": 60_000,
    }
    return known | changes


def _write_evaluation(folder: Path, rng: np.random.Generator, worse: float) -> None:
    drafters = {"trained": 2.5 - worse, "untrained": 1.0, "prompt_lookup": 1.2}
    acceptance, positions, speed = [], [], []
    for drafter, value in drafters.items():
        for temperature in (0.0, 1.0):
            value_here = value - 0.3 * temperature * (value > 1)
            for definition in ("pooled", "pooled; up to the first loop")[: 1 if temperature else 2]:
                acceptance.append(
                    {"drafter": drafter, "temperature": temperature, "prompt_set": "stdlib", "definition": definition, "value": value_here,
                     "lower": value_here - 0.1, "upper": value_here + 0.1, "counted_share": 0.25 if "first loop" in definition else 1.0}
                )  # fmt: skip
            positions += [
                {"drafter": drafter, "temperature": temperature, "prompt_set": "stdlib", "slot": slot, "share": 0.5**slot,
                 "conditional": 0.5 if slot < 6 else float("nan")}
                for slot in range(1, 8)
            ]  # fmt: skip
            speed.append(
                {
                    "drafter": drafter,
                    "temperature": temperature,
                    "seconds": 2.0,
                    "tokens_per_second": 90.0,
                    "speed_up": 0.8,
                }
            )
    pl.DataFrame(acceptance).write_parquet(folder / "acceptance.parquet")
    pl.DataFrame(positions).write_parquet(folder / "positions.parquet")
    pl.DataFrame(speed).write_parquet(folder / "measured" / "speed.parquet")
    decodes = []
    for number in range(8):
        runs = [1, *rng.poisson(1.5 - worse, 12) + 1]
        pieces = [("word " * run) for run in map(int, runs)]
        decodes.append({"prompt": f"prompt {number} {HOSTILE}", "text": "".join(pieces), "pieces": pieces, "runs": list(map(int, runs)),
                        "identical": True, "prompt_set": "stdlib"})  # fmt: skip
    (folder / "decodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in decodes))
