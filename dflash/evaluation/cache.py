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

SHOWN_AT_ONCE = 64
"""Keys beyond the furthest written one are never copied or multiplied, but for the rest of one such piece."""


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one attention layer: [B, K, capacity, D]."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.positions_BS: Tensor | None = None
        self.num_shown = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take memory of the shapes, type and device of the first states."""
        batch, heads, _, key_size = key_states.shape
        self.keys = key_states.new_zeros(batch, heads, self.capacity, key_size)
        self.values = value_states.new_zeros(batch, heads, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new states at every row's own positions and give all that any row has written, rounded up."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        positions_BS = self.positions_BS
        assert positions_BS is not None and self.keys is not None and self.values is not None
        rows_B1 = torch.arange(positions_BS.shape[0], device=positions_BS.device)[:, None]
        self.keys[rows_B1, :, positions_BS] = key_states.transpose(1, 2)
        self.values[rows_B1, :, positions_BS] = value_states.transpose(1, 2)
        return self.keys[:, :, : self.num_shown], self.values[:, :, : self.num_shown]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys and their offset, for masks that the model would make; ours are passed ready."""
        return self.num_shown, 0

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

    def at(self, positions_BS: Tensor) -> int:
        """Say where the next forward writes. int64, every row increasing, below the capacity.

        Returns:
            Keys that the forward sees: those up to the furthest position, rounded up so that shapes stay few.
        """
        furthest = int(positions_BS.max()) + 1
        num_shown = min(-(-furthest // SHOWN_AT_ONCE) * SHOWN_AT_ONCE, self.capacity)
        for layer in self._ragged:
            layer.positions_BS, layer.num_shown = positions_BS, num_shown
        return num_shown

    def keep_rows(self, rows_B: Tensor) -> None:
        """Drop every row of every layer that is not listed."""
        for layer in self._ragged:
            layer.keep_rows(rows_B)


def visible(positions_BS: Tensor, num_keys: int, window: int | None) -> Tensor:
    """Which keys each query sees: bool [B, 1, S, num_keys].

    Args:
        positions_BS: int64 positions of the queries.
        num_keys: keys that the forward sees.
        window: keys that a query sees at most, its own included; None for all.
    """
    keys = torch.arange(num_keys, device=positions_BS.device)
    distance_BSJ = positions_BS[:, :, None] - keys
    seen_BSJ = distance_BSJ >= 0
    if window is not None:
        seen_BSJ &= distance_BSJ < window
    return seen_BSJ[:, None]
