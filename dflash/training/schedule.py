"""The learning rate of every step: linear warm-up, then a cosine. A pure function, so resume has nothing to restore."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Warm-up and cosine.

    Attributes:
        peak: learning rate after the warm-up.
        final_share: learning rate after the last step, as a share of the peak.
        warmup_share: share of the steps that warm up.
        num_steps: optimizer steps of the run.
    """

    peak: float
    final_share: float
    warmup_share: float
    num_steps: int

    def at(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        warmup_steps = math.ceil(self.warmup_share * self.num_steps)
        if step < warmup_steps:
            return self.peak * (step + 1) / warmup_steps
        done = (step - warmup_steps) / max(1, self.num_steps - warmup_steps)
        return self.peak * (
            self.final_share + (1.0 - self.final_share) * 0.5 * (1.0 + math.cos(math.pi * done))
        )
