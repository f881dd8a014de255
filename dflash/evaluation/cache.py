"""A key-value cache whose rows advance at their own pace, and the masks that go with it.

Rows of a batch accept different numbers of drafted tokens, so after every step they have different lengths. Here
each row writes at its own positions into preallocated memory; a rejected token's entries stay where they are and
are overwritten by the next block, which begins at the same position. A query sees key j exactly if j is not after
its own position, and all those keys are current, so nothing has to be cropped, moved or masked out.

Memory: 2 x layers x B x K x capacity x D values.
"""

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one attention layer: [B, K, capacity, D]."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.positions_BS: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take memory of the shapes, type and device of the first states."""
        batch, heads, _, key_size = key_states.shape
        self.keys = key_states.new_zeros(batch, heads, self.capacity, key_size)
        self.values = value_states.new_zeros(batch, heads, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new states at every row's own positions and give the whole memory."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        positions_BS = self.positions_BS
        assert positions_BS is not None and self.keys is not None and self.values is not None
        rows_B1 = torch.arange(positions_BS.shape[0], device=positions_BS.device)[:, None]
        self.keys[rows_B1, :, positions_BS] = key_states.transpose(1, 2)
        self.values[rows_B1, :, positions_BS] = value_states.transpose(1, 2)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys and their offset, for masks that the model would make; ours are passed ready."""
        return self.capacity, 0

    def get_seq_length(self) -> int:
        """Positions are always passed, so no length is ever derived from the cache."""
        return 0

    def get_max_length(self) -> int:
        """Tokens that a row can hold."""
        return self.capacity

    def keep_rows(self, rows_B: Tensor) -> None:
        """Drop every row that is not listed."""
        if self.is_initialized:
            assert self.keys is not None and self.values is not None
            self.keys, self.values = self.keys[rows_B], self.values[rows_B]


class RaggedCache(Cache):
    """One `RaggedLayer` a layer of the target."""

    def __init__(self, num_layers: int, capacity: int) -> None:
        self.capacity = capacity
        self._ragged = [RaggedLayer(capacity) for _ in range(num_layers)]
        super().__init__(layers=list(self._ragged))

    def at(self, positions_BS: Tensor) -> None:
        """Say where the next forward writes. int64, every row increasing, below the capacity."""
        for layer in self._ragged:
            layer.positions_BS = positions_BS

    def keep_rows(self, rows_B: Tensor) -> None:
        """Drop every row of every layer that is not listed."""
        for layer in self._ragged:
            layer.keep_rows(rows_B)


def visible(positions_BS: Tensor, capacity: int, window: int | None) -> Tensor:
    """Which keys each query sees: bool [B, 1, S, capacity].

    Args:
        positions_BS: int64 positions of the queries.
        capacity: positions that the cache holds.
        window: keys that a query sees at most, its own included; None for all.
    """
    keys = torch.arange(capacity, device=positions_BS.device)
    distance_BSJ = positions_BS[:, :, None] - keys
    seen_BSJ = distance_BSJ >= 0
    if window is not None:
        seen_BSJ &= distance_BSJ < window
    return seen_BSJ[:, None]
