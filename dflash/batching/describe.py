"""quality.json: everything that can be said of a plan before it is paid for."""

from typing import Any

import numpy as np
import polars as pl

from dflash.batching.cost import expected_anchors
from dflash.batching.plan import Plan
from dflash.batching.quality import anchors_by_bucket, coverage, mixing, padding, repetition
from dflash.batching.table import epoch_index, epoch_table
from dflash.batching.waiting import drafters_lost, feed, lanes_lost

TARGETS = (1, 2, 3, 4, 5, 6, 7, 8)
RANKS = (2, 4, 8)
# Cells that the waiting is played on.
_PLAYED = 4096


def describe_plan(
    plan: Plan, lengths_N: np.ndarray, supervised_N: np.ndarray, num_tables: int, anchor_cap: int
) -> tuple[dict[str, Any], list[pl.DataFrame]]:
    """Figures of a plan (from epochs 0 and 1) and the tables of its first epochs.

    Args:
        plan: the plan.
        lengths_N, supervised_N: the columns it was made from.
        num_tables: epochs whose tables are made.
        anchor_cap: anchors that a micro-batch may hold; more are cut and counted here.
    """
    config = plan.description.config
    anchors_N = expected_anchors(supervised_N, config.anchor_share, config.anchors_per_sample)
    first, second = epoch_index(plan, 0), epoch_index(plan, 1)
    tables = [epoch_table(index, lengths_N, anchors_N, plan.num_cells) for index in (first, second)]
    planned_N = np.zeros(len(lengths_N), bool)
    planned_N[first.sample_ids_N] = True
    useful_cost = float(config.limits.cost(lengths_N[planned_N]).sum())
    figures = {
        "plan_id": plan.plan_id,
        "policy": config.policy,
        "num_samples": plan.num_samples,
        "num_dropped": plan.description.num_dropped,
        **padding(tables[0], config.limits, useful_cost),
        **coverage(first, plan.num_samples),
        **repetition(first, second, planned_N),
        "long_samples": repetition(
            first, second, planned_N & (lengths_N >= _top_decile(lengths_N[planned_N]))
        ),
        **mixing(tables[0], first, lengths_N, plan.num_cells),
        "buckets": anchors_by_bucket(tables[0], anchor_cap),
        "waiting": waiting(tables[0], plan),
    }
    for epoch in range(2, num_tables):
        tables.append(epoch_table(epoch_index(plan, epoch), lengths_N, anchors_N, plan.num_cells))
    return figures, tables[:num_tables]


def _top_decile(lengths_N: np.ndarray) -> float:
    return float(np.quantile(lengths_N, 0.9)) if len(lengths_N) else 0.0


def waiting(table: pl.DataFrame, plan: Plan) -> dict[str, Any]:
    """What ranks would lose to waiting, by playing the dealing on the first cells.

    `targets`: T targets before one drafter that keeps up with exactly T of them: the attained share of what supply or
    demand allows. `drafters`: D drafters a step, share lost. `lanes`: lanes that meet after every micro-batch, share
    lost. Target cost is that of the budget; drafter cost is anchors plus a tenth of the padded tokens.
    """
    whole = table.head(min(table.height, _PLAYED) // plan.num_cells * plan.num_cells)
    limits = plan.description.config.limits
    target_C = limits.cost(whole["width"].to_numpy()) * whole["rows"].to_numpy()
    drafter_C = whole["anchors"].to_numpy() + 0.1 * whole["padded_tokens"].to_numpy()
    scale = float(target_C.sum()) / max(float(drafter_C.sum()), 1.0)
    return {
        "targets": {str(t): feed(target_C, drafter_C * scale / t, t)["attained"] for t in TARGETS},
        "drafters": {str(d): drafters_lost(drafter_C, plan.num_cells, d) for d in RANKS},
        "lanes": {str(n): lanes_lost(target_C, plan.num_cells, n) for n in RANKS},
    }
