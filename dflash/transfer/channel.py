"""The feature channel: what moves packets from target ranks to drafter ranks by the rules of `ring`.

Packets travel over a data group (gloo between CPUs or by host staging, NCCL between GPUs), credits over a group of
their own on the CPU. A target's sends come from one thread in an order that follows from the plan; a drafter posts its
receives from its main thread, in its order. Every wait has a time limit.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dflash.transfer.ring import ReceiveRing, SendRing

# How often a thread that waits for another looks up.
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Link:
    """How ranks are joined.

    Attributes:
        data, credits: groups of packets and of credits; two, so that a large packet never delays a credit.
        device: where packets lie; the CPU where they are staged through the host.
        timeout: longest wait for another rank.
    """

    data: dist.ProcessGroup
    credits: dist.ProcessGroup
    device: torch.device
    timeout: timedelta


@dataclass(frozen=True)
class Expected:
    """A packet that both ends know of: where it comes from or goes to, and its elements."""

    peer: int
    size: int


class PacketSender:
    """A target's end. Fill a slot, hand it over; a thread sends it when its credit has come."""

    def __init__(self, link: Link, num_slots: int, slot_size: int, dtype: torch.dtype) -> None:
        """slot_size: elements of the largest packet."""
        self._link = link
        self._ring = SendRing(num_slots)
        self._slots = torch.empty(num_slots, slot_size, dtype=dtype, device=link.device)
        self._changed = threading.Condition()
        self._todo: queue.Queue[tuple[Expected, torch.cuda.Event | None] | None] = queue.Queue()
        self._failed: str | None = None
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    @property
    def queued_packets(self) -> int:
        """Packets that wait for their credit or are on their way."""
        return self._ring.queued

    def reserve(self) -> Tensor:
        """The slot of the next packet, flat; waits for a free one.

        Raises:
            TimeoutError: no slot became free. RuntimeError: a drafter is gone.
        """
        deadline = time.monotonic() + self._link.timeout.total_seconds()
        with self._changed:
            while not self._ring.may_fill():
                self._check()
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"no drafter took a packet for {self._link.timeout.total_seconds():.0f} s"
                    )
                self._changed.wait(_LOOK_SECONDS)
            self._check()
            return self._slots[self._ring.fill()]

    def commit(self, expected: Expected) -> None:
        """Hand over the slot that was reserved last."""
        filled = None
        if self._link.device.type == "cuda":
            filled = torch.cuda.Event()
            filled.record()
        self._todo.put((expected, filled))

    def close(self) -> None:
        """Wait until every packet has left, and end the thread."""
        self._todo.put(None)
        deadline = time.monotonic() + self._link.timeout.total_seconds()
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(_LOOK_SECONDS)
            self._check()
        if self._thread.is_alive():
            raise TimeoutError(
                f"the last packets were not taken for {self._link.timeout.total_seconds():.0f} s"
            )

    def _check(self) -> None:
        if self._failed is not None:
            raise RuntimeError(self._failed)

    def _run(self) -> None:
        stream = torch.cuda.Stream(self._link.device) if self._link.device.type == "cuda" else None
        credited: dict[int, int] = {}
        try:
            while (task := self._todo.get()) is not None:
                expected, filled = task
                self._await_credit(expected.peer, credited)
                self._send(expected, filled, stream)
        except (RuntimeError, ValueError) as error:
            with self._changed:
                self._failed = str(error)
                self._changed.notify_all()

    def _await_credit(self, peer: int, credited: dict[int, int]) -> None:
        """Wait for a drafter's word that the receive of its next packet is posted."""
        number = torch.empty(1, dtype=torch.int64)
        _wait(dist.irecv(number, src=peer, group=self._link.credits), peer, self._link.timeout)
        wanted = credited.get(peer, 0)
        if int(number) != wanted:
            raise ValueError(
                f"rank {peer} gave credit {int(number)}, expected {wanted}; the ranks follow different plans"
            )
        credited[peer] = wanted + 1

    def _send(
        self, expected: Expected, filled: torch.cuda.Event | None, stream: torch.cuda.Stream | None
    ) -> None:
        packet = self._slots[self._ring.send(), : expected.size]
        with torch.cuda.stream(stream):
            if filled is not None and stream is not None:
                stream.wait_event(filled)
            _wait(
                dist.isend(packet, dst=expected.peer, group=self._link.data),
                expected.peer,
                self._link.timeout,
            )
        if stream is not None:
            stream.synchronize()
        with self._changed:
            self._ring.left()
            self._changed.notify_all()


class PacketReceiver:
    """A drafter's end. Receives of the next packets are always posted, as many as the ring has slots."""

    def __init__(
        self, link: Link, num_slots: int, slot_size: int, dtype: torch.dtype, expected: Iterator[Expected]
    ) -> None:
        """expected: every packet in this drafter's order; read ahead by the ring's slots."""
        self._link = link
        self._ring = ReceiveRing(num_slots)
        self._slots = torch.empty(num_slots, slot_size, dtype=dtype, device=link.device)
        self._expected = expected
        self._posted: deque[tuple[Expected, dist.Work]] = deque()
        self._credits: deque[tuple[Tensor, dist.Work]] = deque()
        self._credited: dict[int, int] = {}

    @property
    def queued_packets(self) -> int:
        """Packets that are on their way or have arrived."""
        return self._ring.queued

    def post(self) -> None:
        """Post receives while slots are free, and tell the targets."""
        while self._ring.may_post() and (expected := next(self._expected, None)) is not None:
            packet = self._slots[self._ring.post(), : expected.size]
            work = dist.irecv(packet, src=expected.peer, group=self._link.data)
            assert work is not None
            self._posted.append((expected, work))
            self._give_credit(expected.peer)

    def take(self) -> tuple[Tensor, Expected]:
        """The next packet, flat; waits for it. Valid until `release`.

        Raises:
            RuntimeError: its target is gone, or did not send in time.
        """
        self.post()
        expected, work = self._posted.popleft()
        if self._link.device.type == "cuda":
            _wait_on_gpu(work, self._link.timeout)
        else:
            _wait(work, expected.peer, self._link.timeout)
        return self._slots[self._ring.take(), : expected.size], expected

    def release(self) -> None:
        """The packet taken last was trained; its slot receives another."""
        if self._link.device.type == "cuda":
            # The receive must not overwrite what kernels in flight still read: it waits for this stream.
            torch.cuda.current_stream(self._link.device).synchronize()
        self._ring.release()
        self.post()

    def _give_credit(self, peer: int) -> None:
        number = torch.tensor([self._credited.get(peer, 0)])
        self._credited[peer] = int(number) + 1
        work = dist.isend(number, dst=peer, group=self._link.credits)
        assert work is not None
        self._credits.append((number, work))
        # At most one credit a slot is on its way, so older ones have arrived long ago.
        while len(self._credits) > 2 * len(self._slots):
            _, sent = self._credits.popleft()
            _wait(sent, peer, self._link.timeout)


def _wait(work: dist.Work | None, peer: int, timeout: timedelta) -> None:
    """Wait for a transfer with another rank.

    Raises:
        RuntimeError: the rank is gone, or the time is over.
    """
    assert work is not None
    try:
        work.wait(timeout)
    except RuntimeError as error:
        gone = "Connection" in str(error)
        reason = (
            "closed the connection: its process ended"
            if gone
            else f"did not answer for {timeout.total_seconds():.0f} s"
        )
        raise RuntimeError(f"rank {peer} {reason}") from error


def _wait_on_gpu(work: dist.Work, timeout: timedelta) -> None:
    """Wait on the host, so that the time blocked is seen, then order the stream behind the receive."""
    deadline = time.monotonic() + timeout.total_seconds()
    while not work.is_completed():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no packet came for {timeout.total_seconds():.0f} s")
        time.sleep(0.0002)
    work.wait()
