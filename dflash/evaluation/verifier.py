"""The frozen target as a decoder: ragged cache, logits, and the features of the tapped layers."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash.evaluation.cache import RaggedCache, visible

ATTENTION_TYPES = {"full_attention", "sliding_attention"}


class TargetVerifier:
    """Runs a Hugging Face causal model on rows that advance at their own pace (see `cache`)."""

    def __init__(self, model: PreTrainedModel, layers: torch.nn.ModuleList, taps: tuple[int, ...]) -> None:
        """Wrap a model.

        Args:
            model: the causal model, with its head.
            layers: its decoder layers.
            taps: layers whose outputs are the features; may be empty.

        Raises:
            ValueError: the model has layers that keep no keys (recurrent or linear attention): their state can't go
                back to before a rejected token.
        """
        text_config = model.config.get_text_config()
        types = getattr(text_config, "layer_types", None) or ["full_attention"] * len(layers)
        others = sorted(set(types) - ATTENTION_TYPES)
        if others:
            raise ValueError(
                f"the target has layers of type {others[0]!r}, whose state can't be taken back after a rejected token; "
                "evaluation needs a target with full or sliding attention in all layers"
            )
        window = getattr(text_config, "sliding_window", None)
        uniform_window = window if getattr(text_config, "layer_types", None) is None else None
        self.device = next(model.parameters()).device
        self._model, self._layers, self._taps = model, layers, taps
        self._windows = {"full_attention": uniform_window, "sliding_attention": window}
        self._types = set(types)
        self._cache: RaggedCache | None = None

    def begin(self, num_rows: int, capacity: int) -> None:
        """Forget everything; the memory is taken at the first run."""
        self._cache = RaggedCache(len(self._layers), capacity)

    def keep_rows(self, rows_B: Tensor) -> None:
        """Drop every row that is not listed."""
        assert self._cache is not None
        self._cache.keep_rows(rows_B)

    def run(self, tokens_BS: Tensor, positions_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, S, V] and features [B, S, F] at the given positions, which enter the cache."""
        cache = self._cache
        assert cache is not None
        cache.at(positions_BS)
        masks = {kind: self._mask(positions_BS, cache.capacity, self._windows[kind]) for kind in self._types}
        # models of one attention type take the mask itself, models of several a mask for each
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        tapped: dict[int, Tensor] = {}
        handles = [
            self._layers[tap].register_forward_hook(
                lambda module, inputs, output, tap=tap: tapped.update(
                    {tap: output[0] if isinstance(output, tuple) else output}
                )
            )
            for tap in self._taps
        ]
        try:
            logits_BSV = self._model(tokens_BS, mask, positions_BS, cache, use_cache=True).logits
        finally:
            for handle in handles:
                handle.remove()
        features = [tapped[tap] for tap in self._taps]
        return logits_BSV, torch.cat(features, dim=-1) if features else logits_BSV[..., :0]

    def _mask(self, positions_BS: Tensor, capacity: int, window: int | None) -> Tensor:
        """An additive mask [B, 1, S, capacity]: the form that every attention implementation takes."""
        seen = visible(positions_BS, capacity, window)
        dtype = next(self._model.parameters()).dtype
        return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)
