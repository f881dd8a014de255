"""The published checkpoint layout (z-lab): what Transformers' remote code, SGLang and vLLM load.

Loaders read the same fact at different places, so it stands at all of them: the block size at the top and in
`dflash_config`, rope as `rope_parameters` and as `rope_theta` / `rope_scaling` (Transformers 5 drops the latter when it
saves). `num_target_layers` is what SGLang checks taps against. Slot k predicts the token at anchor + k (`fill-in`);
engines take that for granted where `sample_from_anchor` is false or absent.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dflash.model.drafter_config import DrafterConfig, TargetFacts
from dflash.model.drafter_files import check_weights, write_json, write_weights

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def export_zlab(
    folder: Path, config: DrafterConfig, facts: TargetFacts, weights: dict[str, Tensor], dtype: torch.dtype
) -> list[str]:
    """Write `config.json` and `model.safetensors`, read them back and compare.

    Returns:
        Notices about engines that serve this drafter differently.

    Raises:
        ValueError: the weights are not those of the config.
    """
    check_weights(folder / WEIGHTS, config, weights)
    folder.mkdir(parents=True, exist_ok=True)
    cast = {name: weight.to(dtype) for name, weight in weights.items()}
    write_weights(folder / WEIGHTS, cast)
    write_json(folder / CONFIG, zlab_config(config, facts, dtype))
    again, read = import_zlab(folder, facts)
    if again != config or any(not torch.equal(read[name], cast[name].cpu()) for name in cast):
        raise ValueError(f"{folder}: what was written does not read back as the same drafter")
    return notices(config)


def notices(config: DrafterConfig) -> list[str]:
    """What an engine is known to do differently with such a drafter."""
    if all(window is None for window in config.windows):
        return []
    notice = (
        "sliding-window layers: SGLang, and vLLM before its V2 runner, serve them causally inside the block, but this "
        "drafter's slots see each other both ways; expect lower acceptance there than measured here"
    )
    return [notice]


def zlab_config(config: DrafterConfig, facts: TargetFacts, dtype: torch.dtype) -> dict[str, Any]:
    """The content of `config.json`."""
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": config.block_size,
        "dflash_config": {
            "block_size": config.block_size,
            "mask_token_id": config.mask_token_id,
            "num_target_layers": config.num_target_layers,
            "target_layer_ids": list(config.taps),
        },
        "is_causal": False,
        "num_target_layers": config.num_target_layers,
        "target_model": facts.name,
        **qwen3_fields(config),
        "dtype": str(dtype).removeprefix("torch."),
    }


def qwen3_fields(config: DrafterConfig) -> dict[str, Any]:
    """The drafter's shape as a Qwen3 config.

    Raises:
        ValueError: layers with windows of several sizes, which the layout cannot say.
    """
    windows = {window for window in config.windows if window is not None}
    if len(windows) > 1:
        raise ValueError(
            f"the drafter's layers have windows {sorted(windows)}; checkpoint layouts know one size"
        )
    window = windows.pop() if windows else None
    scaled = config.rope["rope_type"] != "default"
    scaling = {key: value for key, value in config.rope.items() if key != "rope_theta"}
    return {
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_parameters": dict(config.rope),
        "rope_theta": config.rope["rope_theta"],
        "rope_scaling": scaling if scaled else None,
        "partial_rotary_factor": config.rope.get("partial_rotary_factor", 1.0),
        "layer_types": ["full_attention" if each is None else "sliding_attention" for each in config.windows],
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "max_window_layers": config.num_layers,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
    }


def import_zlab(folder: Path, facts: TargetFacts) -> tuple[DrafterConfig, dict[str, Tensor]]:
    """Read a published drafter, old layout or new, one file or several.

    Args:
        facts: of the target, for what old configs leave out.

    Raises:
        ValueError: a config without mask token or taps, or weights that do not fit it.
    """
    path = folder / CONFIG
    raw = json.loads(path.read_text())
    own = raw.get("dflash_config") or {}
    fixed = {
        "block_size": own.get("block_size", raw.get("block_size")),
        "mask_token_id": own.get("mask_token_id", raw.get("mask_token_id")),
        "taps": own.get("target_layer_ids", raw.get("target_layer_ids")),
    }
    missing = [name for name, value in fixed.items() if value is None]
    if missing:
        raise ValueError(
            f"{path}: no {', '.join(missing)}; a drafter's config must say them, they cannot be derived"
        )
    if raw.get("sample_from_anchor") or own.get("shift_label"):
        raise ValueError(
            f"{path}: slots of this drafter predict the token after their own place; only fill-in drafters are trained here"
        )
    config = DrafterConfig(
        taps=tuple(fixed["taps"]),
        block_size=fixed["block_size"],
        mask_token_id=fixed["mask_token_id"],
        num_target_layers=own.get("num_target_layers", raw.get("num_target_layers", facts.num_layers)),
        **shape_fields(raw, path),
    )
    weights = _read_weights(folder)
    check_weights(folder / WEIGHTS, config, weights)
    return config, weights


def shape_fields(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields of a `DrafterConfig` that a Qwen3 config says; the inverse of `qwen3_fields`.

    Raises:
        ValueError: a key is missing, or the shape is none of this drafter's.
    """
    needed = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    missing = [key for key in needed if key not in raw]
    if missing:
        raise ValueError(f"{path}: no {', '.join(missing)}; these keys are needed")
    if raw.get("attention_bias"):
        raise ValueError(f"{path}: attention_bias is true; this drafter's projections have no bias")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{path}: hidden_act is {raw['hidden_act']!r}; this drafter's is silu")
    layers, heads = raw["num_hidden_layers"], raw["num_attention_heads"]
    types = raw.get("layer_types") or ["full_attention"] * layers
    window = raw.get("sliding_window")
    return {
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["intermediate_size"],
        "num_layers": layers,
        "num_heads": heads,
        "num_key_value_heads": raw.get("num_key_value_heads") or heads,
        "head_size": raw.get("head_dim") or raw["hidden_size"] // heads,
        "vocab_size": raw["vocab_size"],
        "rms_norm_eps": raw.get("rms_norm_eps", 1e-6),
        "max_position_embeddings": raw.get("max_position_embeddings", 32768),
        "rope": _rope(raw),
        "windows": tuple(window if each == "sliding_attention" else None for each in types),
        "bos_token_id": raw.get("bos_token_id"),
        "eos_token_id": raw.get("eos_token_id"),
    }


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    rope = {key: value for key, value in scaling.items() if key != "type"}
    rope["rope_theta"] = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
    rope["rope_type"] = scaling.get("rope_type", scaling.get("type", "default"))
    rope["partial_rotary_factor"] = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    return rope


def _read_weights(folder: Path) -> dict[str, Tensor]:
    files = [WEIGHTS]
    if (folder / INDEX).is_file():
        files = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    weights: dict[str, Tensor] = {}
    for name in files:
        weights |= load_file(folder / name)
    return {name.removeprefix("model."): weight for name, weight in weights.items() if not _of_target(name)}


def _of_target(name: str) -> bool:
    """Whether a tensor is a copy of the target's embedding or head, which loaders ignore."""
    return name.removeprefix("model.") in {"embed_tokens.weight", "lm_head.weight"}
