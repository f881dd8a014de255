"""Plays a plan on a topology: who works, who waits, how long the whole takes.

A discrete-event simulation of `dflash.training` on T targets that feed D drafters. Every event depends only on
events of earlier cells in plan order, so one pass in that order finds all times; no event queue is needed.

The machine that is played:

- a target takes its cells in plan order: forward, then the packet needs a free place in the target's send ring;
- a transfer starts when its packet is ready, the target's earlier packets have left (one thread sends, in order), the
  drafter's receive ring has a free place (a send starts only after its receive is posted) and the drafter's link is
  free; links carry one packet at a time, in the drafter's order;
- a drafter takes its cells in plan order; a place is free again when its cell has been trained;
- drafters meet at the end of every step, which then costs `step_seconds` (all-reduce and update).

Price: about 2 microseconds a cell; a million cells in 2 to 3 s.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Work:
    """What has to be done, a value a cell, in plan order.

    Attributes:
        step_C: int64, the optimizer step of a cell, nondecreasing.
        target_C: int64, the target of a cell.
        drafter_C: int64, the drafter of a cell.
        target_seconds_C: float64, the target's forward.
        drafter_seconds_C: float64, the drafter's forward and backward.
        transfer_seconds_C: float64, the packet's way.
        useful_tokens_C: int64, real tokens.
    """

    step_C: np.ndarray
    target_C: np.ndarray
    drafter_C: np.ndarray
    target_seconds_C: np.ndarray
    drafter_seconds_C: np.ndarray
    transfer_seconds_C: np.ndarray
    useful_tokens_C: np.ndarray


@dataclass(frozen=True)
class Played:
    """What came out. Shares of ranks are of `total_seconds`.

    Attributes:
        total_seconds: end of the last step.
        tokens_per_second: useful tokens over `total_seconds`.
        target_busy_T, target_full_T: seconds of work, seconds blocked on a full send ring.
        drafter_busy_D, drafter_empty_D: seconds of work, seconds blocked on an empty receive ring.
        drafter_meeting_D: seconds from a drafter's last cell of a step to the step's end.
        supply, demand: useful tokens/s of the targets alone, of the drafters alone (steps included).
    """

    total_seconds: float
    tokens_per_second: float
    target_busy_T: np.ndarray
    target_full_T: np.ndarray
    drafter_busy_D: np.ndarray
    drafter_empty_D: np.ndarray
    drafter_meeting_D: np.ndarray
    supply: float
    demand: float


class _Places:
    """Times at which the places of a ring were freed; the ring is free at first."""

    def __init__(self, num_places: int) -> None:
        self._freed = deque([0.0] * num_places)

    def take(self, ready: float) -> float:
        """The time at which a packet that is ready has a place."""
        return max(ready, self._freed.popleft())

    def free(self, at: float) -> None:
        self._freed.append(at)


def play(
    work: Work,
    num_targets: int,
    num_drafters: int,
    *,
    send_places: int,
    receive_places: int,
    step_seconds: float,
) -> Played:
    """Play the work on `num_targets` targets that feed `num_drafters` drafters.

    Args:
        work: the cells in plan order.
        send_places, receive_places: packets in a target's and in a drafter's ring.
        step_seconds: time of the drafters' meeting at the end of a step.

    Raises:
        ValueError: an assignment outside the topology, steps out of order, or a ring without a place.
    """
    _check(work, num_targets, num_drafters, send_places, receive_places)
    send = [_Places(send_places) for _ in range(num_targets)]
    receive = [_Places(receive_places) for _ in range(num_drafters)]
    target_free, sender_free = [0.0] * num_targets, [0.0] * num_targets
    link_free, drafter_free = [0.0] * num_drafters, [0.0] * num_drafters
    full, empty, meeting = [0.0] * num_targets, [0.0] * num_drafters, [0.0] * num_drafters
    step = int(work.step_C[0]) if len(work.step_C) else 0
    rows = zip(
        work.step_C.tolist(),
        work.target_C.tolist(),
        work.drafter_C.tolist(),
        work.target_seconds_C.tolist(),
        work.drafter_seconds_C.tolist(),
        work.transfer_seconds_C.tolist(),
        strict=True,
    )
    for cell_step, target, drafter, target_seconds, drafter_seconds, transfer_seconds in rows:
        if cell_step != step:
            _meet(drafter_free, meeting, step_seconds)
            step = cell_step
        forward_end = target_free[target] + target_seconds
        packed = send[target].take(forward_end)
        full[target] += packed - forward_end
        target_free[target] = packed
        ready = max(packed, sender_free[target], link_free[drafter])
        arrived = receive[drafter].take(ready) + transfer_seconds
        sender_free[target] = link_free[drafter] = arrived
        send[target].free(arrived)
        start = max(drafter_free[drafter], arrived)
        empty[drafter] += start - drafter_free[drafter]
        drafter_free[drafter] = start + drafter_seconds
        receive[drafter].free(drafter_free[drafter])
    if len(work.step_C):
        _meet(drafter_free, meeting, step_seconds)
    return _played(work, num_targets, num_drafters, max(drafter_free), full, empty, meeting, step_seconds)


def play_colocated(work: Work, num_ranks: int, *, step_seconds: float) -> Played:
    """Play the work on ranks that are both target and drafter; the rank of a cell is its `drafter_C`."""
    _check(work, num_ranks, num_ranks, 1, 1)
    seconds = work.target_seconds_C + work.drafter_seconds_C
    steps, step_of_C = np.unique(work.step_C, return_inverse=True)
    # [steps, ranks]: seconds of work of every rank in every step
    worked = np.zeros((len(steps), num_ranks))
    np.add.at(worked, (step_of_C, work.drafter_C), seconds)
    longest = worked.max(axis=1, initial=0.0)
    total = float(longest.sum() + step_seconds * len(steps))
    meeting = (longest[:, None] - worked).sum(axis=0) + step_seconds * len(steps)
    nothing = [0.0] * num_ranks
    return _played(work, num_ranks, num_ranks, total, nothing, nothing, meeting.tolist(), step_seconds)


def _meet(drafter_free: list[float], meeting: list[float], step_seconds: float) -> None:
    """End a step: all drafters wait for the last one, then reduce and update together."""
    end = max(drafter_free) + step_seconds
    for drafter, free in enumerate(drafter_free):
        meeting[drafter] += end - free
        drafter_free[drafter] = end


def _played(
    work: Work,
    num_targets: int,
    num_drafters: int,
    total: float,
    full: list[float],
    empty: list[float],
    meeting: list[float],
    step_seconds: float,
) -> Played:
    target_busy = np.bincount(work.target_C, work.target_seconds_C, minlength=num_targets)
    drafter_busy = np.bincount(work.drafter_C, work.drafter_seconds_C, minlength=num_drafters)
    tokens = float(work.useful_tokens_C.sum())
    steps = len(np.unique(work.step_C))
    supply_seconds = target_busy.sum() / num_targets
    demand_seconds = drafter_busy.sum() / num_drafters + step_seconds * steps
    return Played(
        total_seconds=total,
        tokens_per_second=tokens / total if total else 0.0,
        target_busy_T=target_busy,
        target_full_T=np.array(full),
        drafter_busy_D=drafter_busy,
        drafter_empty_D=np.array(empty),
        drafter_meeting_D=np.array(meeting),
        supply=tokens / supply_seconds if supply_seconds else 0.0,
        demand=tokens / demand_seconds if demand_seconds else 0.0,
    )


def _check(work: Work, num_targets: int, num_drafters: int, send_places: int, receive_places: int) -> None:
    if min(num_targets, num_drafters) < 1:
        raise ValueError(
            f"a topology of {num_targets} targets and {num_drafters} drafters; both must be at least 1"
        )
    if min(send_places, receive_places) < 1:
        raise ValueError(f"rings of {send_places} and {receive_places} packets; each side needs at least 1")
    if (np.diff(work.step_C) < 0).any():
        raise ValueError("step_C must not decrease: cells are played in plan order")
    for name, ranks, number in (
        ("target", work.target_C, num_targets),
        ("drafter", work.drafter_C, num_drafters),
    ):
        if len(ranks) and not 0 <= int(ranks.min()) <= int(ranks.max()) < number:
            raise ValueError(f"{name}_C reaches from {ranks.min()} to {ranks.max()}, but there are {number}")
