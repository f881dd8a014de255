"""Where a speculative text differs from plain greedy decoding, and whether rounding explains it.

In float32 both texts must be the same. In bfloat16 the target's logits depend on how many tokens it runs on at once,
so two nearly equal tokens may change places: a divergence is an error only where the float32 target prefers one of its
two best tokens clearly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

BFLOAT16_TOLERANCE = 0.25
"""Largest gap of two float32 logits that bfloat16 may turn over: logits of size 16 to 32 are an eighth apart in bfloat16,
and two of them are compared."""
FLOAT32_TOLERANCE = 1e-3
"""The same for float32 with another order of summation; logits of that size are 2e-6 apart, sums of a thousand terms more."""


@dataclass(frozen=True)
class Divergence:
    """The first difference of one prompt's texts: its place, and the float32 gap between the two best tokens there."""

    prompt: int
    place: int
    gap: float
    is_error: bool


def divergences(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    speculative: Sequence[Sequence[int]],
    tolerance: float,
) -> list[Divergence]:
    """Judge every prompt whose texts differ.

    Args:
        model: the target in float32.
        prompts, plain, speculative: token ids.
        tolerance: largest gap of two logits that rounding explains.
    """
    found = []
    for number, (prompt, left, right) in enumerate(zip(prompts, plain, speculative, strict=True)):
        if list(left) == list(right):
            continue
        shared = zip(left, right, strict=False)
        place = next((at for at, (a, b) in enumerate(shared) if a != b), min(len(left), len(right)))
        ids = torch.tensor([[*prompt, *left[:place]]], device=next(model.parameters()).device)
        with torch.inference_mode():
            best = model(ids, use_cache=False).logits[0, -1].float().topk(2).values
        gap = float(best[0] - best[1])
        found.append(Divergence(number, place, gap, gap > tolerance))
    return found
