"""The channel as it is, threads and all, over a transport inside this process: any schedule ends, with every packet once."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.transfer import channel
from dflash.transfer.channel import Expected, Link, PacketReceiver, PacketSender
from tests.transfer.wire import Distributed, Group, Wire

# Longer than any schedule takes, so that only a deadlock meets it.
DEADLOCK = timedelta(seconds=20)
HUGE = 20_000


@pytest.fixture(autouse=True, scope="module")
def in_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "dist", Distributed)
        yield


def link(rank: int, data: Wire, credits: Wire, timeout: timedelta = DEADLOCK) -> Link:
    return Link(cast(Any, Group(data, rank)), cast(Any, Group(credits, rank)), torch.device("cpu"), timeout)


@dataclass(frozen=True)
class Schedule:
    """What every rank does. cells: (step, target, drafter, elements), in plan order; delays: longest pause in seconds."""

    num_targets: int
    num_drafters: int
    send_slots: int
    receive_slots: int
    cells: list[tuple[int, int, int, int]]
    target_delay: float
    drafter_delay: float
    seed: int


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    num_targets = draw(st.integers(1, 4))
    num_drafters = draw(st.integers(1, 3))
    sizes = st.one_of(st.integers(1, 50), st.just(HUGE))
    cell = st.tuples(st.integers(0, num_targets - 1), st.integers(0, num_drafters - 1), sizes)
    steps = draw(st.lists(st.lists(cell, max_size=8), min_size=1, max_size=6))
    delay = st.sampled_from([0.0, 0.0, 0.0005, 0.003])
    return Schedule(
        num_targets,
        num_drafters,
        draw(st.integers(2, 5)),
        draw(st.integers(2, 5)),
        [(step, *each) for step, cells in enumerate(steps) for each in cells],
        draw(delay),
        draw(delay),
        draw(st.integers(0, 2**32)),
    )


class Play:
    """Runs a schedule with a thread for each rank; `taken` holds what every drafter trained on, in its order."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.data, self.credits = Wire(), Wire()
        self.taken: list[list[int]] = [[] for _ in range(schedule.num_drafters)]
        self.failed: list[str] = []
        self.slot_size = max((size for *_, size in schedule.cells), default=1)
        self._meeting = threading.Barrier(schedule.num_drafters, timeout=DEADLOCK.total_seconds())

    def run(self) -> None:
        """Raises: AssertionError where a rank failed or is stuck."""
        ranks = [
            threading.Thread(target=self._guard, args=(self._target, number), daemon=True)
            for number in range(self.schedule.num_targets)
        ] + [
            threading.Thread(target=self._guard, args=(self._drafter, number), daemon=True)
            for number in range(self.schedule.num_drafters)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(3 * DEADLOCK.total_seconds())
        assert not self.failed, self.failed
        assert not any(rank.is_alive() for rank in ranks)

    def _guard(self, rank: Any, number: int) -> None:
        try:
            rank(number)
        except (RuntimeError, TimeoutError, AssertionError) as error:
            self.failed.append(f"{rank.__name__} {number}: {error!r}")

    def _target(self, target: int) -> None:
        plan, pauses = self.schedule, random.Random(self.schedule.seed + target)
        sender = PacketSender(
            link(target, self.data, self.credits), plan.send_slots, self.slot_size, torch.int64
        )
        for number, (_, feeder, drafter, size) in enumerate(plan.cells):
            if feeder != target:
                continue
            time.sleep(pauses.uniform(0.0, plan.target_delay))
            sender.reserve()[:size] = number
            sender.commit(Expected(plan.num_targets + drafter, size))
            assert sender.queued_packets <= plan.send_slots
        sender.close()
        assert sender.queued_packets == 0

    def _drafter(self, drafter: int) -> None:
        plan, pauses = self.schedule, random.Random(-1 - self.schedule.seed - drafter)
        mine = [(number, *cell) for number, cell in enumerate(plan.cells) if cell[2] == drafter]
        receiver = PacketReceiver(
            link(plan.num_targets + drafter, self.data, self.credits),
            plan.receive_slots,
            self.slot_size,
            torch.int64,
            (Expected(target, size) for _, _, target, _, size in mine),
        )
        for step in range(1 + max((cell[0] for cell in plan.cells), default=0)):
            for number, of_step, target, _, size in mine:
                if of_step != step:
                    continue
                packet, expected = receiver.take()
                assert expected == Expected(target, size)
                assert receiver.queued_packets < plan.receive_slots
                time.sleep(pauses.uniform(0.0, plan.drafter_delay))
                # Whole, and still whole after a while: no later packet came into this slot.
                assert bool((packet == number).all()), f"packet {number} holds {packet.unique().tolist()}"
                self.taken[drafter].append(number)
                receiver.release()
            self._meeting.wait()


def check(schedule: Schedule) -> None:
    play = Play(schedule)
    play.run()
    assert play.taken == [
        [number for number, cell in enumerate(schedule.cells) if cell[2] == drafter]
        for drafter in range(schedule.num_drafters)
    ]
    assert play.data.num_bytes == 8 * sum(size for *_, size in schedule.cells)
    assert play.data.early == 0, "a send began before its receive was posted"


@settings(max_examples=100, deadline=None)
@given(schedules())
def test_any_schedule_ends_with_every_packet_once(schedule: Schedule) -> None:
    check(schedule)


@pytest.mark.full
@settings(max_examples=1000, deadline=None)
@given(schedules())
def test_a_thousand_schedules_end_with_every_packet_once(schedule: Schedule) -> None:
    check(schedule)


@pytest.mark.parametrize(("target_delay", "drafter_delay"), [(0.004, 0.0), (0.0, 0.004), (0.0, 0.0)])
@pytest.mark.parametrize("size", [3, HUGE])
@pytest.mark.parametrize(("targets", "drafters"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_two_packets_are_enough(
    targets: int, drafters: int, size: int, target_delay: float, drafter_delay: float
) -> None:
    # Twelve cells a step through two slots: no ring has to hold a step.
    cells = [(cell // 12, cell % targets, cell % drafters, size) for cell in range(36)]
    check(Schedule(targets, drafters, 2, 2, cells, target_delay, drafter_delay, 0))


def test_a_drafter_that_takes_nothing_stops_its_target_in_time() -> None:
    sender = PacketSender(link(0, Wire(), Wire(), timedelta(seconds=0.2)), 2, 4, torch.int64)
    sender.reserve()
    sender.commit(Expected(1, 4))
    with pytest.raises(RuntimeError, match="rank 1 did not answer for 0 s"):
        reserve_until_refused(sender)


def reserve_until_refused(sender: PacketSender) -> None:
    for _ in range(2):
        sender.reserve()
    raise AssertionError("two more slots without a drafter")


def test_a_target_that_sends_nothing_is_named() -> None:
    receiver = PacketReceiver(
        link(1, Wire(), Wire(), timedelta(seconds=0.2)), 2, 4, torch.int64, iter([Expected(0, 4)])
    )
    with pytest.raises(RuntimeError, match="rank 0 did not answer"):
        receiver.take()


def test_a_closed_connection_is_called_so() -> None:
    data = Wire(cut=True)
    receiver = PacketReceiver(link(1, data, Wire()), 2, 4, torch.int64, iter([Expected(0, 4)]))
    with pytest.raises(RuntimeError, match="rank 0 closed the connection: its process ended"):
        receiver.take()


def test_ranks_that_follow_different_plans_are_found_out() -> None:
    data, credits = Wire(), Wire()
    sender = PacketSender(link(0, data, credits), 2, 4, torch.int64)
    Distributed.isend(torch.tensor([1]), 0, cast(Any, Group(credits, 1)))
    sender.reserve()
    sender.commit(Expected(1, 4))
    with pytest.raises(RuntimeError, match="gave credit 1, expected 0; the ranks follow different plans"):
        reserve_until_refused(sender)


def test_receives_are_posted_as_far_ahead_as_the_ring_and_no_further() -> None:
    data, credits = Wire(), Wire()
    receiver = PacketReceiver(link(1, data, credits), 3, 4, torch.int64, (Expected(0, 4) for _ in range(9)))
    receiver.post()
    assert len(data.receives[0, 1]) == len(credits.sends[1, 0]) == 3
    sender = PacketSender(link(0, data, credits), 2, 4, torch.int64)
    sender.reserve()[:] = 5
    sender.commit(Expected(1, 4))
    packet, _ = receiver.take()
    assert packet.tolist() == [5] * 4 and len(data.receives[0, 1]) == 2
    receiver.release()
    assert len(data.receives[0, 1]) == 3
    sender.close()
