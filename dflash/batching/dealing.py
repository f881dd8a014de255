"""Who works on which cell. No part of the plan: the plan is the same for any ranks.

Targets are stateless and take cells in plan order across step boundaries. Drafters meet once a step, so each step's
cells are dealt by themselves. Rows of similar cost exist only for ranks that meet after every micro-batch.
"""

import heapq

import numpy as np


def deal_targets(costs_C: np.ndarray, num_targets: int) -> np.ndarray:
    """Target of each cell, int64: in plan order, each cell goes to the target that would be free first.

    Args:
        costs_C: predicted target cost of the cells, in plan order (an epoch, or any run of whole steps from its start).
        num_targets: T; ties go to the lower number.
    """
    # Pairs of (time free, target): a pure function of the costs and T, so every rank works it out for itself.
    free = [(0.0, target) for target in range(num_targets)]
    dealt_C = np.empty(len(costs_C), np.int64)
    for cell, cost in enumerate(np.asarray(costs_C, np.float64).tolist()):
        time, target = free[0]
        dealt_C[cell] = target
        heapq.heapreplace(free, (time + cost, target))
    return dealt_C


def deal_drafters(costs_G: np.ndarray, num_drafters: int) -> np.ndarray:
    """Drafter of each cell of one step, int64: the longest first to the least loaded, then improved by swaps.

    A function of the step's costs and D alone, so the same D gives the same sums whatever the targets.
    """
    costs = np.asarray(costs_G, np.float64)
    dealt = np.empty(len(costs), np.int64)
    loads = [(0.0, drafter) for drafter in range(num_drafters)]
    for cell in np.argsort(-costs, kind="stable").tolist():
        load, drafter = loads[0]
        dealt[cell] = drafter
        heapq.heapreplace(loads, (load + float(costs[cell]), drafter))
    return _swapped(costs, dealt, num_drafters)


def _swapped(costs: np.ndarray, dealt: np.ndarray, num_drafters: int) -> np.ndarray:
    """Move or swap cells between the most loaded drafter and another while that lowers the larger of both loads."""
    loads = np.bincount(dealt, weights=costs, minlength=num_drafters)
    for _ in range(4 * len(costs)):
        heavy = int(loads.argmax())
        mine = np.flatnonzero(dealt == heavy)
        others = np.flatnonzero(dealt != heavy)
        # The last column stands for giving a cell away for nothing, to the least loaded drafter.
        give = costs[mine][:, None] - np.append(costs[others], 0.0)[None, :]
        light = np.append(loads[dealt[others]], loads.min())
        peak = np.maximum(loads[heavy] - give, light[None, :] + give)
        if not peak.size or float(peak.min()) >= loads[heavy] * (1 - 1e-12):
            break
        row, column = np.unravel_index(int(peak.argmin()), peak.shape)
        receiver = int(loads.argmin()) if column == len(others) else int(dealt[others[column]])
        dealt[mine[row]] = receiver
        if column < len(others):
            dealt[others[column]] = heavy
        loads = np.bincount(dealt, weights=costs, minlength=num_drafters)
    return dealt


def deal_rows(costs_G: np.ndarray, num_lanes: int) -> np.ndarray:
    """Lanes in lock-step: a step's cells sorted by cost and cut into rows of similar cost, int64[rows, lanes].

    Every entry is a cell; -1 is a lane without work. The last row may be short.
    """
    order = np.argsort(-np.asarray(costs_G, np.float64), kind="stable")
    rows = -(-len(order) // num_lanes)
    dealt = np.full(rows * num_lanes, -1, np.int64)
    dealt[: len(order)] = order
    return dealt.reshape(rows, num_lanes)
