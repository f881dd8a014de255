"""A transport inside one process, as strict as the real ones: nothing is buffered, a send ends when its receive took it."""

import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

from torch import Tensor


class Work:
    """A transfer under way."""

    def __init__(self, wire: "Wire", tensor: Tensor) -> None:
        self.tensor = tensor
        self.done = False
        self._wire = wire

    def wait(self, timeout: timedelta) -> None:
        """Raises: RuntimeError, as torch.distributed does, when the time is over or the peer is gone."""
        with self._wire.changed:
            over = self._wire.changed.wait_for(lambda: self.done or self._wire.cut, timeout.total_seconds())
        if not self.done:
            raise RuntimeError("Connection closed by peer" if self._wire.cut else f"timed out ({over})")


@dataclass
class Wire:
    """One group between all ranks. Sends and receives of an ordered pair match in the order of their posting.

    Attributes:
        early: sends that began before their receive was posted.
        num_bytes: moved in all. cut: every connection is closed.
    """

    changed: threading.Condition = field(default_factory=threading.Condition)
    sends: dict[tuple[int, int], deque[Work]] = field(default_factory=dict)
    receives: dict[tuple[int, int], deque[Work]] = field(default_factory=dict)
    early: int = 0
    num_bytes: int = 0
    cut: bool = False

    def post(self, pair: tuple[int, int], tensor: Tensor, sends: bool) -> Work:
        """Post one end of a transfer; it happens at once if the other end is there."""
        work = Work(self, tensor)
        with self.changed:
            mine, others = (self.sends, self.receives) if sends else (self.receives, self.sends)
            if waiting := others.setdefault(pair, deque()):
                other = waiting.popleft()
                source, sink = (work, other) if sends else (other, work)
                assert source.tensor.numel() == sink.tensor.numel(), f"{pair}: the ends differ in size"
                sink.tensor.copy_(source.tensor)
                self.num_bytes += source.tensor.numel() * source.tensor.element_size()
                source.done = sink.done = True
                self.changed.notify_all()
            else:
                self.early += sends
                mine.setdefault(pair, deque()).append(work)
        return work


@dataclass(frozen=True)
class Group:
    """A wire as one rank holds it."""

    wire: Wire
    rank: int


class Distributed:
    """The two calls of torch.distributed that the channel makes."""

    @staticmethod
    def isend(tensor: Tensor, dst: int, group: Group) -> Work:
        """Post a send."""
        return group.wire.post((group.rank, dst), tensor, sends=True)

    @staticmethod
    def irecv(tensor: Tensor, src: int, group: Group) -> Work:
        """Post a receive."""
        return group.wire.post((src, group.rank), tensor, sends=False)
