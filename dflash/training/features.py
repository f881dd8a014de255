"""Where a drafter's features come from: the target in the same process, or a channel from target ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash.model.target import Target
from dflash.training.memory import is_out_of_memory, out_of_memory_message
from dflash.training.micro_batch import Rows


class FeatureSource(Protocol):
    """Gives a drafter the features of its cells, in its order."""

    def take(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Features [B, S, F] and final states [B, S, H] of the next cell; valid until `release`."""

    def release(self) -> None:
        """The cell's features are not needed any more."""


@dataclass
class LocalTarget:
    """The target in this process: of a colocated rank, or of a target rank.

    Attributes:
        final: whether final states are needed.
        splits: halve the rows of a micro-batch that does not fit in memory, instead of stopping.
    """

    target: Target
    taps: Sequence[int]
    final: bool
    splits: bool

    def take(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Run the backbone.

        Raises:
            ValueError: out of memory.
        """
        num_rows, width = rows.ids_BS.shape
        try:
            return self.target.features(
                rows.ids_BS, self.taps, positions_BS=rows.positions_BS, final=self.final
            )
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if not self.splits or num_rows == 1:
                raise ValueError(
                    out_of_memory_message("target", num_rows, width, None, self.splits)
                ) from error
        halves = [self.take(rows.part(*part)) for part in ((0, num_rows // 2), (num_rows // 2, num_rows))]
        finals = [final for _, final in halves if final is not None]
        return torch.cat([features for features, _ in halves]), torch.cat(finals) if finals else None

    def release(self) -> None:
        """Nothing is held."""
