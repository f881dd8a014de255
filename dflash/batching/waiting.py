"""Who waits for whom under the dealing: targets before a drafter, drafters of a step, lanes in lock-step.

Costs are predicted, in any unit. Queues are bounded: a target holds at most `ring` finished cells that its drafter
has not taken yet.
"""

from collections import deque

import numpy as np

from dflash.batching.dealing import deal_drafters, deal_rows, deal_targets


def feed(target_C: np.ndarray, drafter_C: np.ndarray, num_targets: int, ring: int = 2) -> dict[str, float]:
    """Targets that feed one drafter, cells taken in plan order.

    Args:
        target_C: target cost of each cell.
        drafter_C: drafter cost of each cell, in the same unit of time.
        num_targets: T.
        ring: finished cells that a target may hold.

    Returns:
        total: end of the last cell; drafter_busy: busy share of the drafter; attained: the time that supply alone or
        demand alone would take, whichever is longer, over the total.
    """
    dealt = deal_targets(target_C, num_targets)
    free = [0.0] * num_targets
    held: list[deque[float]] = [deque(maxlen=ring) for _ in range(num_targets)]
    clock = 0.0
    for target, work, training in zip(dealt.tolist(), target_C.tolist(), drafter_C.tolist(), strict=True):
        # With all places taken, the target begins when the drafter has begun the oldest of its cells.
        begin = free[target] if len(held[target]) < ring else max(free[target], held[target][0])
        free[target] = begin + work
        start = max(clock, free[target])
        held[target].append(start)
        clock = start + training
    supply = float(np.bincount(dealt, weights=target_C, minlength=num_targets).max(initial=0.0))
    demand = float(drafter_C.sum())
    if clock == 0:
        return {"total": 0.0, "drafter_busy": 1.0, "attained": 1.0}
    return {"total": clock, "drafter_busy": demand / clock, "attained": max(supply, demand) / clock}


def drafters_lost(drafter_C: np.ndarray, num_cells: int, num_drafters: int) -> float:
    """Share of the drafters' time that is lost because they meet at the end of every step: sum max / sum mean - 1."""
    longest = mean = 0.0
    for start in range(0, len(drafter_C), num_cells):
        costs_G = drafter_C[start : start + num_cells]
        loads = np.bincount(deal_drafters(costs_G, num_drafters), weights=costs_G, minlength=num_drafters)
        longest += float(loads.max())
        mean += float(loads.mean())
    return longest / mean - 1 if mean else 0.0


def lanes_lost(target_C: np.ndarray, num_cells: int, num_lanes: int) -> float:
    """Share of the lanes' time that is lost because they meet after every micro-batch."""
    longest = mean = 0.0
    for start in range(0, len(target_C), num_cells):
        costs_G = np.asarray(target_C[start : start + num_cells], np.float64)
        rows = deal_rows(costs_G, num_lanes)
        costs = np.where(rows >= 0, costs_G[np.maximum(rows, 0)], 0.0)
        longest += float(costs.max(axis=1).sum())
        mean += float(costs.sum()) / num_lanes
    return longest / mean - 1 if mean else 0.0
