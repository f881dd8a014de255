"""What a micro-batch costs, how many rows it may have, and what padding a sample to a width costs."""

from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Limits:
    """The two budgets of a micro-batch and the memory model.

    A micro-batch of B rows of width u holds if B x u is at most the memory, and either its target cost
    B x (u + u^2 / attention_tokens) is at most `budget_tokens` or B = 1 (a single long row that memory allows).

    Attributes:
        budget_tokens: target cost at most, in the cost of one padded token.
        attention_tokens: width q at which attention costs as much as the rest; None: attention is free.
        memory_tokens: padded tokens at most; None: `budget_tokens`.
        budget_anchors: expected anchors at most.
    """

    budget_tokens: int
    attention_tokens: int | None = None
    memory_tokens: int | None = None
    budget_anchors: int = 1 << 31

    @property
    def largest_width(self) -> int:
        """Widest row that fits at all, in tokens."""
        return self.budget_tokens if self.memory_tokens is None else self.memory_tokens

    def cost(self, widths: np.ndarray) -> np.ndarray:
        """Target cost of a row, float64: u + u^2 / q."""
        width = np.asarray(widths, dtype=np.float64)
        return width if self.attention_tokens is None else width + width * width / self.attention_tokens

    def max_rows(self, widths: np.ndarray) -> np.ndarray:
        """Rows that cost and memory allow at each width, int64, at least 1.

        Raises:
            ValueError: a width does not fit alone.
        """
        width = np.asarray(widths, dtype=np.int64)
        if width.size and int(width.max()) > self.largest_width:
            setting = "batching.budget_tokens" if self.memory_tokens is None else "batching.memory_tokens"
            raise ValueError(
                f"{setting} is {self.largest_width}, but the longest sample needs a row of {int(width.max())} tokens; "
                f"raise {setting} to at least {int(width.max())}, or lower data.max_length"
            )
        by_cost = np.floor(self.budget_tokens / np.maximum(self.cost(width), 1.0) + 1e-9).astype(np.int64)
        return np.maximum(np.minimum(by_cost, self.largest_width // np.maximum(width, 1)), 1)


@dataclass(frozen=True)
class Price:
    """Per-sample price of being padded to a width: what the boundaries minimize. Nondecreasing in the width.

    Attributes:
        limits: give attention and the rows of a micro-batch.
        micro_batch: price of a micro-batch as a share of the budget; 0.1 aligns boundaries with the budget's
            divisors at nearly no padding.
        drafter_context: the drafter's work for a context token, as a share of the target's.
    """

    limits: Limits
    micro_batch: float = 0.1
    drafter_context: float = 0.0

    def of(self, widths: np.ndarray) -> np.ndarray:
        """float64: alpha / B(u) + cost(u) + the drafter's context work, in the cost of one padded token."""
        width = np.asarray(widths, dtype=np.int64)
        per_batch = self.micro_batch * self.limits.budget_tokens / self.limits.max_rows(width)
        return per_batch + self.limits.cost(width) + self.drafter_context * width


def aligned(lengths: np.ndarray, alignment: int | Literal["proportional"]) -> np.ndarray:
    """Smallest allowed width of each length, int64, at least 1 x the alignment.

    `proportional`: multiples of max(8, 2^(floor(log2 length) - 4)), so that alignment wastes at most a sixteenth of
    a long sample and short samples keep narrow buckets.
    """
    length = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    if alignment == "proportional":
        # frexp's exponent is floor(log2) + 1, exact for integers below 2^53.
        step = np.maximum(8, 1 << np.maximum(np.frexp(length.astype(np.float64))[1].astype(np.int64) - 5, 0))
    else:
        step = np.int64(alignment)
    return (length + step - 1) // step * step


def expected_anchors(supervised: np.ndarray, share: float, max_per_sample: int) -> np.ndarray:
    """Anchors of each sample at most, int32: the share of its supervised positions, rounded up and capped."""
    wanted = np.ceil(np.asarray(supervised, dtype=np.float64) * share - 1e-9)
    return np.minimum(wanted, max_per_sample).astype(np.int32)
