"""Which token fills the undrafted slots of a block.

It must never occur in the data and must have a finite row in the target's embedding. The published drafters use the
first row after the tokenizer's vocabulary where the embedding has spare rows (Qwen3: 151669 of 151936), or a mask token
that the tokenizer has (Gemma 4).
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Spare tokens under the names that tokenizers give them: reserved_special_token_0, unused0, extra_0 ...
_SPARE = re.compile(r"reserved|unused|<\|?(extra|special|placeholder)_?\d+\|?>", re.IGNORECASE)


def choose_mask_token(tokenizer: Any, embedding_VH: Tensor, requested: int | None) -> int:
    """The mask token: the requested one, else the tokenizer's own, else a spare row, else a spare token.

    Args:
        tokenizer: of transformers.
        embedding_VH: the target's embedding.
        requested: the config's `drafter.mask_token_id`.

    Raises:
        ValueError: the requested token has no finite row, or the target has no token to spare.
    """
    num_rows = embedding_VH.shape[0]
    if requested is not None:
        if requested >= num_rows:
            raise ValueError(
                f"drafter.mask_token_id is {requested}, but the target's embedding has {num_rows} rows"
            )
        if not _finite(embedding_VH, requested):
            raise ValueError(
                f"drafter.mask_token_id is {requested}, whose row in the target's embedding is not finite; use another"
            )
        return requested
    for candidate in _candidates(tokenizer, num_rows):
        if _finite(embedding_VH, candidate):
            return candidate
    raise ValueError(
        "the target has no mask token and no unused token in its vocabulary; set drafter.mask_token_id to a token that never "
        "occurs in the data"
    )


def _candidates(tokenizer: Any, num_rows: int) -> list[int]:
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    used = set(vocabulary.values())
    own = [] if tokenizer.mask_token_id is None else [tokenizer.mask_token_id]
    first_spare = max(used, default=-1) + 1
    rows = list(range(first_spare, num_rows)) + [row for row in range(num_rows) if row not in used]
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    named = sorted(token for text, token in vocabulary.items() if _SPARE.search(text) and token not in ends)
    return [each for each in (*own, *rows, *named) if each < num_rows]


def _finite(embedding_VH: Tensor, row: int) -> bool:
    return bool(torch.isfinite(embedding_VH[row].float()).all())
