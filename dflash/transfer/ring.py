"""The rules of the channel, without any input or output: who may use which slot, and when a send may start.

A target and its drafters agree on the order of packets beforehand: both follow the plan. The rules:

1. A drafter posts receives for the next packets of its own order, as many as its ring has slots, whatever target each
   comes from, and tells each target by a credit that the receive is posted.
2. A target fills the slots of its ring in its own order and sends in that order, each only after its credit came.
3. A slot is free again when its packet was trained (drafter) or has left (target).

No deadlock: let p be the first packet in plan order that was not trained yet. Its drafter has trained all before p, so
p's receive is posted. Its target has sent all before p, so p is the next that it fills or sends. And a drafter that
waits for the others at the end of a step waits for packets of that step only, of which p is the first.
"""

from collections import deque


class SendRing:
    """A target's slots. Packets are numbered 0, 1 ... in the target's own order."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._filled = 0
        self._sent = 0
        self._left = 0

    def may_fill(self) -> bool:
        """Whether the next packet has a free slot."""
        return self._filled - self._left < self.num_slots

    def fill(self) -> int:
        """Take the next packet's slot."""
        assert self.may_fill()
        self._filled += 1
        return (self._filled - 1) % self.num_slots

    def may_send(self) -> bool:
        """Whether a filled packet waits. Its credit must have come too."""
        return self._sent < self._filled

    def send(self) -> int:
        """Start to send the next packet; gives its slot."""
        assert self.may_send()
        self._sent += 1
        return (self._sent - 1) % self.num_slots

    def left(self) -> None:
        """The oldest packet that was sent has left."""
        assert self._left < self._sent
        self._left += 1

    @property
    def queued(self) -> int:
        """Packets that are filled and have not left."""
        return self._filled - self._left


class ReceiveRing:
    """A drafter's slots. Packets are numbered 0, 1 ... in the drafter's own order."""

    def __init__(self, num_slots: int) -> None:
        self._free = deque(range(num_slots))
        self._posted: deque[int] = deque()
        self._in_use: int | None = None

    def may_post(self) -> bool:
        """Whether the next receive has a free slot."""
        return bool(self._free)

    def post(self) -> int:
        """Take a slot for the next receive."""
        slot = self._free.popleft()
        self._posted.append(slot)
        return slot

    def take(self) -> int:
        """The slot of the oldest posted receive, which has arrived; it is in use until `release`."""
        assert self._in_use is None
        self._in_use = self._posted.popleft()
        return self._in_use

    def release(self) -> None:
        """The packet in use was trained."""
        assert self._in_use is not None
        self._free.append(self._in_use)
        self._in_use = None

    @property
    def queued(self) -> int:
        """Receives that are posted."""
        return len(self._posted)
