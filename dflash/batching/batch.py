"""One batch, all batches of an epoch, and what every policy answers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Batch:
    """The samples of one micro-batch.

    Attributes:
        sample_ids: int64, in row order.
        row_offsets: int64[B + 1]; row r holds `sample_ids[row_offsets[r]:row_offsets[r + 1]]`, one document a row
            except for `packed`.
        width: tokens that every row is padded to; 0 for an empty cell.
        bucket: number of the width among the plan's widths.
    """

    sample_ids: np.ndarray
    row_offsets: np.ndarray
    width: int
    bucket: int

    @property
    def num_rows(self) -> int:
        """B; 0 for an empty cell."""
        return len(self.row_offsets) - 1

    def part(self, first: int, last: int) -> "Batch":
        """The rows [first, last)."""
        offsets = self.row_offsets[first : last + 1]
        return Batch(self.sample_ids[offsets[0] : offsets[-1]], offsets - offsets[0], self.width, self.bucket)


def empty_batch() -> Batch:
    """An empty cell: 0 rows; it weighs nothing in its step."""
    return Batch(np.zeros(0, np.int64), np.zeros(1, np.int64), 0, 0)


@dataclass(frozen=True)
class EpochIndex:
    """All batches of an epoch.

    Attributes:
        sample_ids_N: int64, every planned sample once, batch after batch.
        offsets: int64[batches + 1] into `sample_ids_N`.
        widths, buckets, rows: int64, of each batch.
    """

    sample_ids_N: np.ndarray
    offsets: np.ndarray
    widths: np.ndarray
    buckets: np.ndarray
    rows: np.ndarray

    def batch(self, number: int) -> Batch:
        """One of the batches. A batch of fewer rows than samples is one packed row."""
        first, last = int(self.offsets[number]), int(self.offsets[number + 1])
        if int(self.rows[number]) == last - first:
            row_offsets = np.arange(last - first + 1)
        else:
            row_offsets = np.array([0, last - first])
        return Batch(
            self.sample_ids_N[first:last].astype(np.int64),
            row_offsets,
            int(self.widths[number]),
            int(self.buckets[number]),
        )


class Policy(Protocol):
    """What makes the batches of an epoch, in an order that steps are cut from."""

    def num_batches(self, epoch: int) -> int:
        """Batches of an epoch, before the last step is filled."""

    def batch(self, epoch: int, slot: int) -> Batch:
        """One batch by its place in the epoch's order."""

    def index(self, epoch: int) -> EpochIndex:
        """All batches of an epoch in order."""
