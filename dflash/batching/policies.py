"""All policies on the same data, before any GPU is paid for, with a recommendation and its reason."""

from dataclasses import replace

import numpy as np
import polars as pl

from dflash.batching.describe import describe_plan
from dflash.batching.description import POLICIES, PlanConfig
from dflash.batching.keyed import hashes, key_of
from dflash.batching.plan import make_plan

POLICY_COLUMNS = {
    "policy": pl.String,
    "micro_batches": pl.Int64,
    "steps": pl.Int64,
    "shapes": pl.Int64,
    "padding_efficiency": pl.Float64,
    "utilization": pl.Float64,
    "work": pl.Float64,
    "lift": pl.Float64,
    "repeat_rate": pl.Float64,
    "variance_between_batches": pl.Float64,
    "variance_between_steps": pl.Float64,
    "largest_autocorrelation": pl.Float64,
    "drafters_lost": pl.Float64,
    "samples_compared": pl.Int64,
    "recommended": pl.Boolean,
    "reason": pl.String,
}
"""policies.parquet. `work`: target cost of an epoch over that of the recommended policy; `lift`: how often pairs meet
again next epoch, against chance; `drafters_lost`: time that 2 drafters lose in a step."""
LARGEST_SAMPLE = 200_000
"""Samples that are compared at most; a keyed choice of a larger data set."""
_WORTH = 0.05
# Share of the length variance between steps up to which steps count as mixed.
_MIXED = 0.2


def compare_policies(
    lengths_N: np.ndarray, supervised_N: np.ndarray, config: PlanConfig, widths: list[int]
) -> pl.DataFrame:
    """The table of all policies (`POLICY_COLUMNS`), with `config` but for its policy."""
    chosen_N = _chosen(len(lengths_N), config.seed)
    lengths_N, supervised_N = lengths_N[chosen_N], supervised_N[chosen_N]
    rows = []
    for policy in POLICIES:
        plan = make_plan(lengths_N, supervised_N, replace(config, policy=policy), widths)
        figures, tables = describe_plan(plan, lengths_N, supervised_N, 1, 1 << 62)
        limits = config.limits
        if policy == "packed":
            # In a packed row attention is that of each document for itself, the padding's is skipped.
            attention = float((limits.cost(lengths_N) - lengths_N).sum())
            cost = figures["padded_tokens"] + attention
        else:
            cost = float((limits.cost(tables[0]["width"].to_numpy()) * tables[0]["rows"].to_numpy()).sum())
        largest = max(map(abs, figures["autocorrelation"]), default=None)
        kept = {name: figures[name] for name in POLICY_COLUMNS if name in figures}
        lost = figures["waiting"]["drafters"]["2"]
        rows.append({**kept, "work": cost, "largest_autocorrelation": largest, "drafters_lost": lost})
    name, reason = recommendation({row["policy"]: row for row in rows})
    reference = next(row["work"] for row in rows if row["policy"] == name)
    for row in rows:
        row["work"] = row["work"] / reference if reference else None
        row["samples_compared"] = len(lengths_N)
        row["recommended"] = row["policy"] == name
        row["reason"] = reason if row["recommended"] else None
    return pl.DataFrame(rows, schema=POLICY_COLUMNS)


def _chosen(size: int, seed: int) -> np.ndarray:
    """Ids of the samples that are compared, ascending."""
    if size <= LARGEST_SAMPLE:
        return np.arange(size)
    chosen = hashes(key_of(seed, 41), np.arange(size)).argpartition(LARGEST_SAMPLE)[:LARGEST_SAMPLE]
    chosen.sort()
    return chosen


def recommendation(rows: dict[str, dict[str, float]]) -> tuple[str, str]:
    """The policy to take and why: the least work among those that mix, few shapes where work is nearly the same."""
    bucketed, pooled, packed = rows["bucketed"]["work"], rows["pooled"]["work"], rows["packed"]["work"]
    if not bucketed:
        return "bucketed", "there is nothing to batch"
    shapes = f"{rows['bucketed']['shapes']} shapes instead of {rows['pooled']['shapes']}"
    saved_by_packing = 1 - packed / min(bucketed, pooled)
    addition = ""
    if saved_by_packing > _WORTH:
        addition = (
            f"; packed would save {saved_by_packing:.0%} more where the target honors document boundaries"
        )
    if pooled < bucketed * (1 - _WORTH):
        return (
            "pooled",
            f"{1 - pooled / bucketed:.0%} less work than bucketed, at {rows['pooled']['shapes']} shapes{addition}",
        )
    wasted = rows["random"]["work"] / bucketed - 1
    return (
        "bucketed",
        f"random batches cost {wasted:.0%} more; {_mixing(rows['bucketed']['variance_between_steps'])}; {shapes}{addition}",
    )


def _mixing(share: float | None) -> str:
    """How well the steps mix lengths, and what helps where they do so badly."""
    if share is None:
        return "all samples are equally long"
    text = f"{share:.0%} of the length variance lies between steps"
    return text if share <= _MIXED else f"{text} (more batching.cells_per_step would mix them better)"


def policies_text(table: pl.DataFrame) -> str:
    """The table as lines for a terminal, the recommendation last."""
    lines = [
        "policy    batches  steps  shapes  efficiency  work   meets again  length variance between steps"
    ]
    for row in table.iter_rows(named=True):
        efficiency, work, lift, share = (
            _cell(row[name]) for name in ("padding_efficiency", "work", "lift", "variance_between_steps")
        )
        lines.append(
            f"{row['policy']:<9} {row['micro_batches']:>7} {row['steps']:>6} {row['shapes']:>7} "
            f"{efficiency:>11} {work:>6} {lift:>11}x {share:>9}{'  <- recommended' if row['recommended'] else ''}"
        )
    chosen = table.filter(pl.col("recommended")).row(0, named=True)
    return "\n".join([*lines, f"{chosen['policy']}: {chosen['reason']}"])


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
