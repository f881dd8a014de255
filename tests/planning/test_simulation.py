"""The one-pass simulation against a step-by-step machine with clocks, queues and explicit events."""

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.planning.simulation import Work, play, play_colocated


def work_of(rng: np.random.Generator, cells: int, targets: int, drafters: int, cells_per_step: int) -> Work:
    return Work(
        step_C=np.arange(cells) // cells_per_step,
        target_C=rng.integers(0, targets, cells),
        drafter_C=rng.integers(0, drafters, cells),
        target_seconds_C=rng.exponential(1.0, cells),
        drafter_seconds_C=rng.exponential(1.0, cells),
        transfer_seconds_C=rng.exponential(0.1, cells),
        useful_tokens_C=rng.integers(1, 100, cells),
    )


def machine(work: Work, targets: int, drafters: int, send: int, receive: int, step_seconds: float) -> float:
    """Event-driven oracle: agents that poll their own queues whenever anything changed."""
    cells = len(work.step_C)
    of_target: list[list[int]] = [[c for c in range(cells) if work.target_C[c] == t] for t in range(targets)]
    of_drafter: list[list[int]] = [
        [c for c in range(cells) if work.drafter_C[c] == d] for d in range(drafters)
    ]
    steps = sorted(set(work.step_C.tolist()))
    left = {s: int((work.step_C == s).sum()) for s in steps}
    sending, receiving = [0] * targets, [0] * drafters
    unsent: list[list[int]] = [list(cells) for cells in of_target]
    sender_busy = [False] * targets
    events: list[tuple[float, int, str, int]] = []
    number, now, opened = 0, 0.0, 0
    target_state: list[Any] = ["idle"] * targets
    link_busy, drafter_busy = [False] * drafters, [False] * drafters
    packed, arrived = set[int](), set[int]()
    meeting = False

    def post(at: float, kind: str, what: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (at, number, kind, what))

    while True:
        moved = True
        while moved:
            moved = False
            for t in range(targets):
                if target_state[t] == "idle" and of_target[t]:
                    target_state[t] = "forward"
                    post(now + work.target_seconds_C[of_target[t][0]], "forward", t)
                    moved = True
                elif target_state[t] == "full" and sending[t] < send:
                    c = of_target[t].pop(0)
                    sending[t] += 1
                    packed.add(c)
                    target_state[t] = "idle"
                    moved = True
            for d in range(drafters):
                # the link takes packets in plan order, like the receives that were posted for them
                waiting = [c for c in range(cells) if work.drafter_C[c] == d and c not in arrived]
                if not link_busy[d] and waiting and waiting[0] in packed:
                    c = waiting[0]
                    t = int(work.target_C[c])
                    # one thread sends a target's packets, in the target's order
                    if receiving[d] < receive and unsent[t][0] == c and not sender_busy[t]:
                        receiving[d] += 1
                        link_busy[d] = sender_busy[t] = True
                        post(now + work.transfer_seconds_C[c], "arrive", c)
                        moved = True
                queue = of_drafter[d]
                ready = queue and queue[0] in arrived and steps[opened] == work.step_C[queue[0]]
                if ready and not drafter_busy[d] and not meeting:
                    drafter_busy[d] = True
                    post(now + work.drafter_seconds_C[queue[0]], "train", queue[0])
                    moved = True
        if not events:
            return now
        now, _, kind, what = heapq.heappop(events)
        if kind == "forward":
            target_state[what] = "full"
        elif kind == "arrive":
            d = int(work.drafter_C[what])
            link_busy[d] = False
            arrived.add(what)
            t = int(work.target_C[what])
            sending[t] -= 1
            sender_busy[t] = False
            unsent[t].pop(0)
        elif kind == "train":
            d = int(work.drafter_C[what])
            of_drafter[d].pop(0)
            drafter_busy[d] = False
            receiving[d] -= 1
            left[int(work.step_C[what])] -= 1
            if left[int(work.step_C[what])] == 0:
                meeting = True
                post(now + step_seconds, "meet", 0)
        else:
            meeting = False
            opened += 1


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_one_pass_equals_the_machine(
    seed: int, cells: int, targets: int, drafters: int, per_step: int, send: int, receive: int
) -> None:
    work = work_of(np.random.default_rng(seed), cells, targets, drafters, per_step)
    got = play(work, targets, drafters, send_places=send, receive_places=receive, step_seconds=0.25)
    assert got.total_seconds == pytest.approx(machine(work, targets, drafters, send, receive, 0.25))
    assert got.tokens_per_second <= min(got.supply, got.demand) * (1 + 1e-9)


def test_every_second_of_a_drafter_is_accounted_for() -> None:
    work = work_of(np.random.default_rng(0), 200, 3, 2, 8)
    got = play(work, 3, 2, send_places=2, receive_places=2, step_seconds=0.1)
    spent = got.drafter_busy_D + got.drafter_empty_D + got.drafter_meeting_D
    np.testing.assert_allclose(spent, got.total_seconds)


def test_a_slow_drafter_blocks_the_targets_and_a_slow_target_starves_the_drafter() -> None:
    cells = 64
    one = np.ones(cells)
    even = Work(
        np.arange(cells) // 4,
        np.arange(cells) % 2,
        np.zeros(cells, int),
        one,
        one,
        0 * one,
        np.full(cells, 10),
    )
    slow_drafter = play(even, 2, 1, send_places=1, receive_places=1, step_seconds=0.0)
    assert slow_drafter.total_seconds == pytest.approx(cells + 1)
    assert slow_drafter.target_full_T.sum() > 0.4 * cells
    alone = Work(
        even.step_C, np.zeros(cells, int), even.drafter_C, 4 * one, one, 0 * one, even.useful_tokens_C
    )
    starved = play(alone, 1, 1, send_places=1, receive_places=1, step_seconds=0.0)
    assert starved.total_seconds == pytest.approx(4 * cells + 1)
    assert starved.drafter_empty_D[0] > 0.7 * starved.total_seconds
    assert starved.target_full_T[0] == 0


def test_colocated_ranks_meet_once_a_step() -> None:
    work = Work(
        step_C=np.array([0, 0, 1, 1]),
        target_C=np.array([0, 1, 0, 1]),
        drafter_C=np.array([0, 1, 0, 1]),
        target_seconds_C=np.array([1.0, 2.0, 1.0, 1.0]),
        drafter_seconds_C=np.array([1.0, 2.0, 1.0, 1.0]),
        transfer_seconds_C=np.zeros(4),
        useful_tokens_C=np.full(4, 6),
    )
    got = play_colocated(work, 2, step_seconds=0.5)
    assert got.total_seconds == pytest.approx(4 + 0.5 + 2 + 0.5)
    np.testing.assert_allclose(got.drafter_meeting_D, [2.5 + 0.5, 0.5 + 0.5])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_targets": 0}, "0 targets"),
        ({"send_places": 0}, "rings of 0 and 1"),
        ({"num_targets": 1}, "target_C reaches from 0 to 1, but there are 1"),
    ],
)
def test_an_impossible_topology_is_refused(change: dict[str, int], said: str) -> None:
    nothing = np.zeros(2)
    work = Work(
        np.zeros(2, int), np.array([0, 1]), np.zeros(2, int), nothing, nothing, nothing, np.ones(2, int)
    )
    arguments = {"num_targets": 2, "num_drafters": 1, "send_places": 1, "receive_places": 1} | change
    with pytest.raises(ValueError, match=said):
        play(work, step_seconds=0.0, **arguments)


def test_steps_out_of_order_are_refused() -> None:
    nothing = np.zeros(2)
    work = Work(
        np.array([1, 0]), np.zeros(2, int), np.zeros(2, int), nothing, nothing, nothing, np.ones(2, int)
    )
    with pytest.raises(ValueError, match="step_C must not decrease"):
        play(work, 1, 1, send_places=1, receive_places=1, step_seconds=0.0)
