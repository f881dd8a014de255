"""The draft model (DFlash, arXiv:2602.06036): parameters named as in the published checkpoints.

One set of features, fused by `fc` and `hidden_norm`, is the context of every layer: it enters as keys and values and
is never updated itself. A block is [anchor, mask, mask, ...]; its slots see the context strictly before the anchor and
each other. Slot k stands at position anchor + k and predicts the token there.

Embedding and head are the target's, so callers embed blocks and project what comes back. A variant that corrects
logits by what was drafted before (DSpark, Domino) or convolves inside the block (DFlash2) would take what
`Drafter.blocks` gives, or replace `Layer`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash.kernels.anchor_attention import Backend, anchor_attention
from dflash.model.drafter_config import DrafterConfig
from dflash.model.rope import frequencies, rotate, turns


@dataclass(frozen=True)
class Blocks:
    """Where the blocks of a micro-batch stand. int64 [A] each, sorted by (row, position).

    Attributes:
        rows_A: row of the anchor. anchors_A: its place in the row. starts_A: place of its document's first token.
    """

    rows_A: Tensor
    starts_A: Tensor
    anchors_A: Tensor


class RMSNorm(nn.Module):
    """Root-mean-square norm, in float32 whatever comes in."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        """Norm over the last dimension; the type that came in goes out."""
        normed = functional.rms_norm(states.float(), states.shape[-1:], eps=self.eps)
        return self.weight.to(states.dtype) * normed.to(states.dtype)


class Attention(nn.Module):
    """Slots attend to the context before their anchor and to their own block."""

    def __init__(self, config: DrafterConfig, window: int | None) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads = config.num_heads, config.num_key_value_heads
        self.head_size, self.window = config.head_size, window
        hidden, queries, keys = (
            config.hidden_size,
            config.num_heads * config.head_size,
            config.num_key_value_heads * config.head_size,
        )
        self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)
        self.q_norm = RMSNorm(config.head_size, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_size, config.rms_norm_eps)

    def keys_values(self, states: Tensor, turned: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [..., K, D] of the context or of blocks [..., H]."""
        heads = (self.num_key_value_heads, self.head_size)
        keys, values = self.k_proj(states).unflatten(-1, heads), self.v_proj(states).unflatten(-1, heads)
        return rotate(self.k_norm(keys), turned), values

    def forward(
        self,
        states_ALH: Tensor,
        turned: tuple[Tensor, Tensor],
        context: tuple[Tensor, Tensor],
        blocks: Blocks,
        backend: Backend,
    ) -> Tensor:
        """What the slots take in, [A, L, H]. context: keys and values [B, S, K, D]."""
        queries = self.q_norm(self.q_proj(states_ALH).unflatten(-1, (self.num_heads, self.head_size)))
        keys, values = self.keys_values(states_ALH, turned)
        with torch.autocast(states_ALH.device.type, enabled=False):
            seen_ALND = anchor_attention(
                rotate(queries, turned),
                *context,
                keys,
                values,
                blocks.rows_A,
                blocks.starts_A,
                blocks.anchors_A,
                scale=self.head_size**-0.5,
                window=self.window,
                backend=backend,
            )
        return self.o_proj(seen_ALND.flatten(-2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[..., H] to [..., H]."""
        return self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))


class Layer(nn.Module):
    """A decoder layer in Qwen3's style."""

    def __init__(self, config: DrafterConfig, window: int | None) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, window)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        states_ALH: Tensor,
        turned: tuple[Tensor, Tensor],
        context: tuple[Tensor, Tensor],
        blocks: Blocks,
        backend: Backend,
    ) -> Tensor:
        """[A, L, H] to [A, L, H]."""
        states_ALH = states_ALH + self.self_attn(
            self.input_layernorm(states_ALH), turned, context, blocks, backend
        )
        return states_ALH + self.mlp(self.post_attention_layernorm(states_ALH))


@dataclass
class ContextCache:
    """Every layer's keys and values of the context: [B, capacity, K, D], written by position.

    An entry at or after the anchor of the next draft is never seen, so entries of rejected tokens need no removal:
    the next features at their positions overwrite them.
    """

    keys: list[Tensor]
    values: list[Tensor]

    def keep_rows(self, rows_B: Tensor) -> None:
        """Drop every row that is not listed."""
        self.keys = [each[rows_B] for each in self.keys]
        self.values = [each[rows_B] for each in self.values]


class Drafter(nn.Module):
    """The draft model without embedding and head."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.taps) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config, window) for window in config.windows])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # no buffer: casting the module must not round the speeds
        self.speeds, self.turn_factor = frequencies(
            config.rope, config.head_size, config.max_position_embeddings
        )

    def initialize(self, seed: int, head_VH: Tensor) -> None:
        """Draw fresh weights: normal with deviation 0.02, norms at one, the final norm small.

        With a final norm of one a fresh drafter's logits are huge (they repeat the input's own embedding) and the first
        loss is far above ln V. The norm starts where no logit of an average row of the head can pass 3.

        Args:
            head_VH: the target's head.
        """
        generator = torch.Generator().manual_seed(seed)
        row_norm = float(head_VH.float().square().sum(dim=-1).mean().sqrt())
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    parameter.copy_(torch.empty(parameter.shape).normal_(0.0, 0.02, generator=generator))
                else:
                    parameter.fill_(
                        2.0 / (self.config.hidden_size**0.5 * row_norm) if name == "norm.weight" else 1.0
                    )

    def blocks(
        self,
        features_BSF: Tensor,
        embeddings_ALH: Tensor,
        blocks: Blocks,
        *,
        positions_BS: Tensor | None = None,
        backend: Backend = "reference",
    ) -> Tensor:
        """Draft every block of a micro-batch at once: hidden states after the final norm [A, L, H].

        Args:
            features_BSF: the target's features; what lies at or after an anchor or before its document is not seen.
            embeddings_ALH: the embedded blocks, see `block_tokens`.
            positions_BS: int64 positions of the features inside their documents; None counts from the row's start.
            backend: of the attention.
        """
        if positions_BS is None:
            positions_BS = torch.arange(features_BSF.shape[1], device=features_BSF.device).expand(
                features_BSF.shape[:2]
            )
        context_BSH = self._fused(features_BSF)
        turned = self._turns(positions_BS)
        context = [layer.self_attn.keys_values(context_BSH, turned) for layer in self._layers()]
        anchor_positions_A = positions_BS[blocks.rows_A, blocks.anchors_A]
        return self._drafted(embeddings_ALH, anchor_positions_A, context, blocks, backend)

    def context_cache(self, num_rows: int, capacity: int) -> ContextCache:
        """Memory for the context of `num_rows` rows of at most `capacity` tokens, of the drafter's type and device."""
        shape = (num_rows, capacity, self.config.num_key_value_heads, self.config.head_size)
        weight = self.fc.weight
        return ContextCache(
            keys=[weight.new_zeros(shape) for _ in self.layers],
            values=[weight.new_zeros(shape) for _ in self.layers],
        )

    def observe(self, cache: ContextCache, features_BSF: Tensor, positions_BS: Tensor) -> None:
        """Write features into the cache at their positions (int64, distinct in a row); later writes win."""
        context_BSH = self._fused(features_BSF)
        turned = self._turns(positions_BS)
        rows_B1 = torch.arange(positions_BS.shape[0], device=positions_BS.device)[:, None]
        for number, layer in enumerate(self._layers()):
            keys, values = layer.self_attn.keys_values(context_BSH, turned)
            cache.keys[number][rows_B1, positions_BS] = keys.to(cache.keys[number].dtype)
            cache.values[number][rows_B1, positions_BS] = values.to(cache.values[number].dtype)

    def draft(
        self, cache: ContextCache, embeddings_BLH: Tensor, anchors_B: Tensor, backend: Backend = "reference"
    ) -> Tensor:
        """Draft one block a row: hidden states after the final norm [B, L, H].

        Args:
            embeddings_BLH: the embedded blocks. anchors_B: int64 position of each row's last committed token.
        """
        rows_B = torch.arange(len(anchors_B), device=anchors_B.device)
        # columns behind the furthest anchor are seen by nobody
        seen = int(anchors_B.max()) if len(anchors_B) else 0
        context = [
            (keys[:, :seen], values[:, :seen]) for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        blocks = Blocks(rows_B, torch.zeros_like(rows_B), anchors_B)
        return self._drafted(embeddings_BLH, anchors_B, context, blocks, backend)

    def _fused(self, features: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(self._typed(features)))

    def _typed(self, states: Tensor) -> Tensor:
        """Inputs in the weights' type; under autocast, which casts by itself, as they are."""
        return states if torch.is_autocast_enabled(states.device.type) else states.to(self.fc.weight.dtype)

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return turns(self.speeds.to(positions.device), self.turn_factor, positions)

    def _drafted(
        self,
        states_ALH: Tensor,
        anchor_positions_A: Tensor,
        context: list[tuple[Tensor, Tensor]],
        blocks: Blocks,
        backend: Backend,
    ) -> Tensor:
        slots_L = torch.arange(self.config.block_size, device=states_ALH.device)
        turned = self._turns(anchor_positions_A[:, None] + slots_L)
        states_ALH = self._typed(states_ALH)
        for layer, keys_values in zip(self._layers(), context, strict=True):
            states_ALH = layer(states_ALH, turned, keys_values, blocks, backend)
        return self.norm(states_ALH)


def block_tokens(tokens_A: Tensor, block_size: int, mask_token_id: int) -> Tensor:
    """The tokens of blocks: the anchor's, then masks. int64 [A, L]."""
    tokens_AL = tokens_A.new_full((len(tokens_A), block_size), mask_token_id)
    tokens_AL[:, 0] = tokens_A
    return tokens_AL
