"""Acceptance length: what is counted, up to where, and how sure it is.

Definition (pooled): tokens committed by verifying forwards / verifying forwards. The bonus token that each
verification adds is included; the prefill, which commits the first token, is not. A step that reaches over the end of
what is counted (the token limit, a stop token, the cut) counts for the share of its tokens before that end, with the
same share of a forward; otherwise long steps would be cut short and the mean biased down.

Cut: a small model that falls into a loop makes any drafter look good, so the text is also counted only up to the
first 8-gram that repeats one before it in the target's own greedy text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DEFINITION = (
    "committed tokens / verifying forwards, bonus token included, prefill excluded, pooled over prompts"
)
CUT_NGRAM = 8
"""Tokens of the n-gram whose first repetition ends what is counted."""
BOOTSTRAP_DRAWS = 1000


@dataclass(frozen=True)
class Acceptance:
    """A pooled acceptance length with its 95 % bootstrap interval over prompts.

    Attributes:
        length: mean tokens a verifying forward; NaN where nothing was counted.
        lower, upper: 2.5 and 97.5 % of the bootstrap.
        num_tokens: tokens counted. num_forwards: verifying forwards counted (fractional at the ends).
        counted_share: counted tokens / all tokens that verifying forwards committed.
    """

    length: float
    lower: float
    upper: float
    num_tokens: int
    num_forwards: float
    counted_share: float


def first_repeat(tokens: Sequence[int], ngram: int = CUT_NGRAM) -> int:
    """Tokens before the end of the first n-gram that stood earlier in the text; all of them if none did."""
    seen: set[tuple[int, ...]] = set()
    for start in range(len(tokens) - ngram + 1):
        window = tuple(tokens[start : start + ngram])
        if window in seen:
            return start + ngram - 1
        seen.add(window)
    return len(tokens)


def counted(steps: Sequence[int], end: int) -> tuple[int, float]:
    """Tokens and forwards of one prompt up to `end`.

    Args:
        steps: tokens that each verifying forward committed, in order; the text begins with one token of the prefill.
        end: tokens of the text, that first one included, that are counted.

    Returns:
        Tokens counted and the forwards that belong to them.
    """
    ends = 1 + np.cumsum(np.asarray(steps, dtype=np.int64))
    begins = ends - steps
    tokens = np.clip(np.minimum(ends, end) - begins, 0, None)
    shares = np.divide(tokens, steps, out=np.zeros(len(ends)), where=np.asarray(steps) > 0)
    return int(tokens.sum()), float(shares.sum())


def pooled(steps: Sequence[Sequence[int]], ends: Sequence[int], *, seed: int) -> Acceptance:
    """Acceptance length over prompts.

    Args:
        steps: tokens committed by each verifying forward, a list a prompt.
        ends: tokens of each text that are counted (see `counted`).
        seed: seed of the bootstrap.

    Raises:
        ValueError: not one end a prompt.
    """
    if len(steps) != len(ends):
        raise ValueError(f"{len(steps)} prompts but {len(ends)} ends; give one end a prompt")
    pairs = [counted(each, end) for each, end in zip(steps, ends, strict=True)]
    tokens_P = np.array([tokens for tokens, _ in pairs], dtype=np.float64)
    forwards_P = np.array([forwards for _, forwards in pairs], dtype=np.float64)
    committed = sum(sum(each) for each in steps)
    if forwards_P.sum() == 0:
        return Acceptance(float("nan"), float("nan"), float("nan"), 0, 0.0, 0.0)
    draws = np.random.default_rng(seed).integers(0, len(pairs), (BOOTSTRAP_DRAWS, len(pairs)))
    forwards = forwards_P[draws].sum(axis=1)
    ratios = tokens_P[draws].sum(axis=1)[forwards > 0] / forwards[forwards > 0]
    lower, upper = np.quantile(ratios, [0.025, 0.975])
    return Acceptance(
        length=float(tokens_P.sum() / forwards_P.sum()),
        lower=float(lower),
        upper=float(upper),
        num_tokens=int(tokens_P.sum()),
        num_forwards=float(forwards_P.sum()),
        counted_share=float(tokens_P.sum() / committed),
    )


def by_position(steps: Sequence[Sequence[int]], block_size: int) -> np.ndarray:
    """Acceptance by slot: float64 [2, block_size - 1].

    The first row is the share of verifying forwards that accepted slot k (k = 1 ... block_size - 1), the second the
    same among those that accepted slot k - 1; NaN where none did.
    """
    accepted = (
        np.concatenate([np.asarray(each, dtype=np.int64) for each in steps] or [np.zeros(0, np.int64)]) - 1
    )
    reached = np.array([(accepted >= slot).sum() for slot in range(block_size)], dtype=np.float64)
    whole = reached[1:] / reached[0] if reached[0] else np.full(block_size - 1, np.nan)
    conditional = np.divide(
        reached[1:], reached[:-1], out=np.full(block_size - 1, np.nan), where=reached[:-1] > 0
    )
    return np.stack([whole, conditional])
