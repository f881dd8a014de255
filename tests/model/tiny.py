"""A tiny world for the model's tests: targets of a few thousand parameters, drafters and rows of random tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from dflash.model.anchors import AnchorRules, Anchors, Slots, choose_anchors, padded_rows, supervised_slots
from dflash.model.drafter import Blocks, Drafter, block_tokens
from dflash.model.drafter_config import Wishes, derive_config
from dflash.model.target import Target, wrap_target

VOCABULARY = 97
MASK = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def tiny_config(family: str = "qwen3", **changes: Any) -> Any:
    """A transformers config of one of two families."""
    kind = {"qwen3": Qwen3Config, "llama": LlamaConfig}[family]
    return kind(**{**SHAPE, **changes})


def tiny_target(family: str = "qwen3", seed: int = 0, **changes: Any) -> Target:
    """A random target whose weights are large enough that tokens and layers matter."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **changes))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(
                1.0 + 0.3 * torch.randn_like(weight) if "norm" in name else 0.15 * torch.randn_like(weight)
            )
    return wrap_target(model.float(), "tiny")


def tiny_drafter(target: Target, seed: int = 1, **wishes: Any) -> Drafter:
    """A random drafter, its norms included, so that no test passes by symmetry."""
    config, _ = derive_config(
        target.facts, Wishes(**{"num_layers": 2, "block_size": 5, "num_taps": 3, **wishes}), MASK
    )
    drafter = Drafter(config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in drafter.parameters():
            weight.copy_(
                1.0 + 0.3 * torch.randn_like(weight) if weight.dim() == 1 else 0.15 * torch.randn_like(weight)
            )
    return drafter


@dataclass
class Rows:
    """A micro-batch and everything that goes with it."""

    documents: list[np.ndarray]
    masks: list[np.ndarray]
    ids_BS: Tensor
    positions_BS: Tensor
    anchors: Anchors
    slots: Slots
    blocks: Blocks
    tokens_AL: Tensor


def rows_of(
    lengths: list[list[int]], *, block_size: int = 5, prompt: int = 3, seed: int = 0, share: float = 1.0
) -> Rows:
    """Random rows; `lengths` gives the documents of every row, whose first `prompt` tokens are not supervised."""
    generator = np.random.default_rng(seed)
    flat = [length for row in lengths for length in row]
    documents = [generator.integers(3, MASK, length) for length in flat]
    masks = [(np.arange(length) >= prompt).astype(np.uint8) for length in flat]
    offsets = np.cumsum([0, *map(len, lengths)])
    width = max(sum(row) for row in lengths)
    anchors = choose_anchors(
        masks, np.arange(len(flat), dtype=np.uint64), offsets, 0, AnchorRules(share, 512, 4096, seed)
    )
    ids_BS = torch.from_numpy(padded_rows(documents, offsets, width))
    positions = padded_rows([np.arange(length) for length in flat], offsets, width)
    slots = supervised_slots(anchors, padded_rows(masks, offsets, width), block_size)
    blocks = Blocks(
        *(torch.from_numpy(each) for each in (anchors.rows_A, anchors.starts_A, anchors.anchors_A))
    )
    tokens_AL = block_tokens(ids_BS[blocks.rows_A, blocks.anchors_A], block_size, MASK)
    return Rows(documents, masks, ids_BS, torch.from_numpy(positions), anchors, slots, blocks, tokens_AL)
