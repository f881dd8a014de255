"""The layout of speculators 0.9.0, which vLLM serves directly. Same tensors; taps are counted from 1.

A loader silently fills in what the config leaves out (block size 8, random embeddings), so everything is written. The
target must stay reachable under `verifier.name_or_path`: embedding and head are read from there.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dflash.model.drafter_config import DrafterConfig, TargetFacts
from dflash.model.drafter_files import check_weights, write_json, write_weights
from dflash.model.zlab import CONFIG, WEIGHTS, notices, qwen3_fields, shape_fields

VERSION = "0.9.0"


def export_speculators(
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
    write_json(folder / CONFIG, speculators_config(config, facts, dtype))
    again, read = import_speculators(folder, facts)
    if again != config or any(not torch.equal(read[name], cast[name].cpu()) for name in cast):
        raise ValueError(f"{folder}: what was written does not read back as the same drafter")
    return notices(config)


def speculators_config(config: DrafterConfig, facts: TargetFacts, dtype: torch.dtype) -> dict[str, Any]:
    """The content of `config.json`."""
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "speculators_version": VERSION,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in config.taps],
        "block_size": config.block_size,
        "draft_vocab_size": config.vocab_size,
        "dtype": str(dtype).removeprefix("torch."),
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": config.block_size - 1,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"name_or_path": facts.name, "architectures": [facts.architecture]},
        },
        "transformer_layer_config": qwen3_fields(config),
    }


def import_speculators(folder: Path, facts: TargetFacts) -> tuple[DrafterConfig, dict[str, Tensor]]:
    """Read a drafter in the speculators layout with the target's whole vocabulary.

    Args:
        facts: of the target; the layout does not say its number of layers.

    Raises:
        ValueError: another algorithm, label convention or vocabulary, or what loaders would fill in silently is missing.
    """
    path = folder / CONFIG
    raw = json.loads(path.read_text())
    if raw.get("speculators_model_type") != "dflash":
        raise ValueError(
            f"{path}: speculators_model_type is {raw.get('speculators_model_type')!r}; only dflash drafters are trained here"
        )
    needed = ("block_size", "mask_token_id", "aux_hidden_state_layer_ids", "transformer_layer_config")
    missing = [key for key in needed if raw.get(key) is None]
    if missing:
        raise ValueError(
            f"{path}: no {', '.join(missing)}; a drafter's config must say them, they cannot be derived"
        )
    if raw.get("sample_from_anchor"):
        raise ValueError(
            f"{path}: slots of this drafter predict the token after their own place; only fill-in drafters are trained here"
        )
    fields = shape_fields(raw["transformer_layer_config"], path)
    if raw.get("draft_vocab_size", fields["vocab_size"]) != fields["vocab_size"]:
        raise ValueError(
            f"{path}: draft_vocab_size is {raw['draft_vocab_size']}; only the target's whole vocabulary is trained here"
        )
    config = DrafterConfig(
        taps=tuple(layer - 1 for layer in raw["aux_hidden_state_layer_ids"]),
        block_size=raw["block_size"],
        mask_token_id=raw["mask_token_id"],
        num_target_layers=facts.num_layers,
        **fields,
    )
    weights = load_file(folder / WEIGHTS)
    ignored = {"embed_tokens.weight", "lm_head.weight"}
    weights = {
        name.removeprefix("model."): weight
        for name, weight in weights.items()
        if name.removeprefix("model.") not in ignored
    }
    check_weights(folder / WEIGHTS, config, weights)
    return config, weights
