"""Held-out prompts from the token shards: the first of the test split by the hash of their sample."""

from collections.abc import Mapping

import numpy as np

from dflash.data.shards import Shards
from dflash.evaluation.measure import Prompts


def heldout_prompts(shards: Mapping[str, Shards], num_prompts: int, max_tokens: int) -> Prompts:
    """Choose prompts: the tokens of a sample before its first supervised one.

    Args:
        shards: the test split of every source, by the source's name.
        num_prompts: how many at most, over all sources, in the order of their keys.
        max_tokens: prompts longer than this are passed over.

    Raises:
        ValueError: no usable prompt at all.
    """
    found: list[tuple[int, str, int]] = []
    for name, each in shards.items():
        found += [(int(key), name, number) for number, key in enumerate(each.keys_N)]
    chosen, sets, seen = [], [], set[tuple[int, ...]]()
    for _, name, number in sorted(found):
        ids, mask = shards[name].sample(number)
        supervised = np.flatnonzero(mask)
        prompt = tuple(ids[: supervised[0]].tolist()) if len(supervised) else ()
        if prompt and len(prompt) <= max_tokens and prompt not in seen:
            seen.add(prompt)
            chosen.append(list(prompt))
            sets.append(name)
        if len(chosen) == num_prompts:
            break
    if not chosen:
        raise ValueError(
            f"the test split has {len(found)} samples and no prompt of at most {max_tokens} tokens before a supervised one; "
            "raise data.test_share or add data"
        )
    return Prompts(chosen, sets)
