"""What proposes blocks to the verifier: a DFlash drafter, or a lookup in the text so far."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dflash.evaluation.prompt_lookup import look_up
from dflash.kernels.anchor_attention import Backend
from dflash.kernels.linear_cross_entropy import linear_argmax
from dflash.model.drafter import ContextCache, Drafter, block_tokens
from dflash.model.target import Target


class DFlashDrafter:
    """A DFlash drafter: one forward a block, always its most likely tokens (as published, at any temperature)."""

    def __init__(self, drafter: Drafter, target: Target, backend: Backend = "reference") -> None:
        self.block_size = drafter.config.block_size
        self._drafter, self._target, self._backend = drafter, target, backend
        self._cache: ContextCache | None = None

    def begin(self, num_rows: int, capacity: int) -> None:
        """Take memory for the context's keys and values."""
        self._cache = self._drafter.context_cache(num_rows, capacity)

    def keep_rows(self, rows_B: Tensor) -> None:
        """Drop every row that is not listed."""
        assert self._cache is not None
        self._cache.keep_rows(rows_B)

    def observe(self, features_BSF: Tensor, positions_BS: Tensor) -> None:
        """Add features to the context; those of rejected tokens are overwritten before anything sees them."""
        assert self._cache is not None
        self._drafter.observe(self._cache, features_BSF, positions_BS)

    def draft(self, texts: Sequence[np.ndarray]) -> Tensor:
        """Propose int64 [B, L - 1]."""
        assert self._cache is not None
        device, config = self._target.device, self._drafter.config
        last_B = torch.tensor([int(text[-1]) for text in texts], device=device)
        anchors_B = torch.tensor([len(text) - 1 for text in texts], device=device)
        tokens_BL = block_tokens(last_B, config.block_size, config.mask_token_id)
        hidden_BLH = self._drafter.draft(
            self._cache, self._target.embedding_VH[tokens_BL], anchors_B, self._backend
        )
        head = self._target.head
        hidden_MH = hidden_BLH[:, 1:].flatten(0, 1).to(head.weight_VH.dtype)
        tokens_M = linear_argmax(
            hidden_MH, head.weight_VH, bias_V=head.bias_V, softcap=head.softcap, backend=self._backend
        )
        return tokens_M.view(len(texts), config.block_size - 1)


class PromptLookup:
    """The baseline that has learned nothing: see `prompt_lookup`."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self.block_size = block_size
        self._device = device

    def begin(self, num_rows: int, capacity: int) -> None:
        """Nothing is kept between blocks."""

    def keep_rows(self, rows_B: Tensor) -> None:
        """Nothing is kept between blocks."""

    def observe(self, features_BSF: Tensor, positions_BS: Tensor) -> None:
        """Features are not used."""

    def draft(self, texts: Sequence[np.ndarray]) -> Tensor:
        """Propose int64 [B, block size - 1]."""
        proposals = np.stack([look_up(text, self.block_size - 1) for text in texts])
        return torch.from_numpy(proposals).to(self._device)
