"""What is sent for a micro-batch, and how it lies in memory. Both ends work it out from the plan; nothing describes it.

A packet holds the features and, where the objective needs them, the target's final states. Token ids and masks are
not sent: they lie in the memory-mapped shards that both ends read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PacketLayout:
    """The layout of every packet of a run.

    Attributes:
        feature_size: F. hidden_size: H of the final states, 0 where they are not sent.
        dtype: of both.
    """

    feature_size: int
    hidden_size: int
    dtype: torch.dtype

    def size(self, num_rows: int, width: int) -> int:
        """Elements of a packet."""
        return num_rows * width * (self.feature_size + self.hidden_size)

    def num_bytes(self, num_rows: int, width: int) -> int:
        """Bytes of a packet."""
        return self.size(num_rows, width) * self.dtype.itemsize

    def views(self, buffer: Tensor, num_rows: int, width: int) -> tuple[Tensor, Tensor | None]:
        """Features [B, S, F] and final states [B, S, H] (or None) inside a flat buffer."""
        split = num_rows * width * self.feature_size
        features_BSF = buffer[:split].view(num_rows, width, self.feature_size)
        if not self.hidden_size:
            return features_BSF, None
        end = self.size(num_rows, width)
        return features_BSF, buffer[split:end].view(num_rows, width, self.hidden_size)


def ring_size(packet_bytes: int, ring_packets: int, ring_bytes: int) -> int:
    """Packets that a ring holds: as many as asked for, fewer where the bytes bind, never under two.

    Raises:
        ValueError: not even two packets fit; with one, sender and receiver would take turns.
    """
    fitting = min(ring_packets, ring_bytes // max(packet_bytes, 1))
    if fitting < 2:
        raise ValueError(
            f"runtime.ring_bytes is {ring_bytes}, but the largest packet has {packet_bytes} bytes and a ring needs two; raise "
            f"runtime.ring_bytes to {2 * packet_bytes}, or lower batching.budget_tokens (and batching.memory_tokens)"
        )
    return int(fitting)
