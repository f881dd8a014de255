"""Which split a sample belongs to: a hash of its prompt, so that it never moves when data are added or regenerated."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

TRAIN, VALIDATION, TEST = 0, 1, 2
SPLIT_NAMES = ("train", "validation", "test")


def prompt_bytes(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Canonical bytes of a conversation's prompt: its messages before the first assistant turn."""
    prompt = []
    for message in messages:
        if message["role"] == "assistant":
            break
        prompt.append(message)
    return canonical_bytes(prompt)


def canonical_bytes(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """The same bytes for the same messages, whatever the order of their fields."""
    return json.dumps(messages, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def split_of(prompt: bytes, validation_share: float, test_share: float) -> int:
    """The split of a prompt: TRAIN, VALIDATION or TEST.

    A 64-bit BLAKE2b of the prompt, as a fraction of all its values, is compared with the shares. A share that grows
    therefore only moves prompts into the held-out split that grew.
    """
    fraction = int.from_bytes(hashlib.blake2b(prompt, digest_size=8).digest(), "big") / 2.0**64
    if fraction < test_share:
        return TEST
    return VALIDATION if fraction >= 1.0 - validation_share else TRAIN
