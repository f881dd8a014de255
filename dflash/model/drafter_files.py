"""A drafter in files: `drafter.safetensors` (float32 or bfloat16, z-lab's names) and `drafter.json` (shape, target)."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.model.drafter_config import DrafterConfig, TargetFacts

WEIGHTS = "drafter.safetensors"
SHAPE = "drafter.json"


def save_drafter(
    folder: Path, config: DrafterConfig, facts: TargetFacts, weights: Mapping[str, Tensor]
) -> None:
    """Write both files, each atomically.

    Args:
        weights: `Drafter.state_dict()`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / WEIGHTS, weights)
    write_json(folder / SHAPE, {"config": config.as_json(), "target": asdict(facts)})


def load_drafter(folder: Path) -> tuple[DrafterConfig, TargetFacts, dict[str, Tensor]]:
    """What `save_drafter` wrote.

    Raises:
        ValueError: the weights are not those of the shape.
    """
    shape = json.loads((folder / SHAPE).read_text())
    config = DrafterConfig.from_json(shape["config"])
    weights = load_file(folder / WEIGHTS)
    check_weights(folder / WEIGHTS, config, weights)
    return config, TargetFacts(**shape["target"]), weights


def weight_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a drafter; names as in the published checkpoints."""
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_size, config.num_key_value_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(config.taps) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    of_layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (config.head_size,),
        "self_attn.k_norm": (config.head_size,),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    for number in range(config.num_layers):
        shapes |= {f"layers.{number}.{name}.weight": shape for name, shape in of_layer.items()}
    return shapes


def check_weights(path: Path, config: DrafterConfig, weights: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless these are exactly the tensors of the shape, all finite."""
    wanted = weight_shapes(config)
    missing, unknown = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or unknown:
        raise ValueError(
            f"{path}: missing tensors {missing}, unknown tensors {unknown}; these are not the weights of its config"
        )
    for name, shape in wanted.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(
                f"{path}: {name} has shape {tuple(weights[name].shape)}, but its config makes it {shape}"
            )
        if not torch.isfinite(weights[name]).all():
            raise ValueError(f"{path}: {name} holds values that are not finite")


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically; the same weights give the same bytes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(
        {name: weights[name].detach().cpu().contiguous() for name in sorted(weights)},
        temporary,
        metadata={"format": "pt"},
    )
    os.replace(temporary, path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(temporary, path)
