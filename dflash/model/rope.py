"""Rotary positions of the drafter, by a table of frequencies that a rope type fixes (arXiv:2104.09864)."""

from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def frequencies(rope: dict[str, Any], head_size: int, max_position_embeddings: int) -> tuple[Tensor, float]:
    """Rotation speeds in radians a token, float32 [rotated / 2], and the factor on cosine and sine.

    Args:
        rope: `rope_theta`, `rope_type`, `partial_rotary_factor`, and the factors of the type as Transformers names them.
    """
    if rope["rope_type"] != "default":
        shape = Qwen3Config(
            head_dim=head_size,
            num_attention_heads=1,
            max_position_embeddings=max_position_embeddings,
            rope_parameters=dict(rope),
        )
        speeds, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](shape, torch.device("cpu"))
        return speeds.float(), float(factor)
    rotated = int(head_size * rope.get("partial_rotary_factor", 1.0))
    return 1.0 / rope["rope_theta"] ** (torch.arange(0, rotated, 2, dtype=torch.float32) / rotated), 1.0


def turns(speeds: Tensor, factor: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions, float32 [..., 1, rotated / 2]; the place of one is for the heads."""
    # float32 whatever the drafter's type: a bfloat16 angle is wrong by whole radians at a few hundred tokens
    angles = positions[..., None, None].float() * speeds
    return angles.cos() * factor, angles.sin() * factor


def rotate(states: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the first dimensions of every head; the halves of the rotated part are a pair (`neox` style).

    Args:
        states: [..., heads, D]. turned: cosines and sines that broadcast over the heads.
    """
    cosines, sines = (each.to(states.dtype) for each in turned)
    half = cosines.shape[-1]
    first, second = states[..., :half], states[..., half : 2 * half]
    parts = [first * cosines - second * sines, second * cosines + first * sines]
    if 2 * half < states.shape[-1]:
        parts.append(states[..., 2 * half :])
    return torch.cat(parts, dim=-1)
