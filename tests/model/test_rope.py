"""Rotation against Transformers' Qwen3, which other loaders of the checkpoint use."""

from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

from dflash.model.rope import frequencies, rotate, turns

ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 512},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
]


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
def test_equals_transformers(rope: dict[str, Any]) -> None:
    torch.manual_seed(0)
    states = torch.randn(2, 6, 3, 16)
    positions = torch.tensor([[0, 1, 2, 3, 900, 2047], [5, 6, 7, 8, 9, 10]])
    config = Qwen3Config(
        head_dim=16,
        num_attention_heads=3,
        hidden_size=48,
        max_position_embeddings=2048,
        rope_parameters=dict(rope),
    )
    cosines, sines = Qwen3RotaryEmbedding(config)(states, positions)
    wanted, _ = apply_rotary_pos_emb(states.transpose(1, 2), states.transpose(1, 2), cosines, sines)
    speeds, factor = frequencies({**rope, "partial_rotary_factor": 1.0}, 16, 2048)
    mine = rotate(states, turns(speeds, factor, positions))
    assert (mine - wanted.transpose(1, 2)).abs().max() < 1e-6
    assert not torch.allclose(mine, states, atol=0.1)


def test_the_rest_of_a_head_stays() -> None:
    states = torch.randn(4, 1, 16)
    speeds, factor = frequencies(
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}, 16, 64
    )
    mine = rotate(states, turns(speeds, factor, torch.arange(1, 5)))
    assert torch.equal(mine[..., 4:], states[..., 4:])
    assert (mine[..., :4] - states[..., :4]).abs().min() > 0
