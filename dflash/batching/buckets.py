"""The `bucketed` policy: keyed shuffles inside buckets, low-discrepancy interleaving, no state an epoch."""

from dataclasses import dataclass

import numpy as np

from dflash.batching.batch import Batch, EpochIndex
from dflash.batching.interleave import interleaved, interleaved_window
from dflash.batching.keyed import hashes, key_of, permuted, uniform

_SHUFFLE, _PHASE, _TURN = 1, 2, 3


def bucket_of(lengths: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """uint8 bucket of every length: the first width that holds it. At most 256 buckets."""
    table = np.searchsorted(widths, np.arange(int(widths[-1]) + 1)).astype(np.uint8)
    return table[lengths]


def bucket_order(buckets_N: np.ndarray, num_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample ids grouped by bucket, ascending inside (uint32), and the number of samples of each bucket (int64).

    Chunks are ordered by radix and laid behind one another, so that the int64 indices of an argsort exist for one
    chunk at a time.
    """
    counts = np.bincount(buckets_N, minlength=num_buckets).astype(np.int64)
    order = np.empty(len(buckets_N), np.uint32)
    ends = np.cumsum(counts) - counts
    chunk = 1 << 20
    for start in range(0, len(buckets_N), chunk):
        part = buckets_N[start : start + chunk]
        inside = np.argsort(part, kind="stable").astype(np.uint32)
        inside += np.uint32(start)
        sizes = np.bincount(part, minlength=num_buckets)
        offset = 0
        for bucket in np.flatnonzero(sizes).tolist():
            size = int(sizes[bucket])
            order[ends[bucket] : ends[bucket] + size] = inside[offset : offset + size]
            ends[bucket] += size
            offset += size
    return order, counts


@dataclass(frozen=True)
class Layout:
    """How many batches each bucket makes once remainders have moved.

    Attributes:
        total_K: samples that a bucket shuffles: its own and those promoted into it.
        kept_K: those of them that it batches itself; the rest go to the next bucket.
        num_batches_K: its batches, the last of which may be short.
    """

    total_K: np.ndarray
    kept_K: np.ndarray
    num_batches_K: np.ndarray


def layout_of(counts_K: np.ndarray, rows_K: np.ndarray) -> Layout:
    """Promote a bucket's remainder to the next larger bucket where that adds no batch there; else keep it short."""
    total_K = np.array(counts_K, dtype=np.int64)
    kept_K = total_K.copy()
    for bucket in range(len(total_K) - 1):
        rest = int(total_K[bucket] % rows_K[bucket])
        above, rows = int(counts_K[bucket + 1]), int(rows_K[bucket + 1])
        if -(-(above + rest) // rows) == -(-above // rows):
            kept_K[bucket] = total_K[bucket] - rest
            total_K[bucket + 1] += rest
        else:
            kept_K[bucket] = total_K[bucket]
    if len(total_K):
        kept_K[-1] = total_K[-1]
    return Layout(total_K, kept_K, -(-kept_K // np.maximum(rows_K, 1)))


class Buckets:
    """All batches of every epoch, by random access."""

    def __init__(
        self, order: np.ndarray, widths_K: np.ndarray, rows_K: np.ndarray, counts_K: np.ndarray, seed: int
    ) -> None:
        """Args: sample ids grouped by bucket; widths, rows of a batch and samples of each bucket; the seed."""
        self.order = order
        self.widths_K = widths_K
        self.rows_K = rows_K
        self.counts_K = counts_K
        self.seed = seed
        self.layout = layout_of(counts_K, rows_K)
        self.starts_K = np.cumsum(counts_K) - counts_K
        self._total = int(self.layout.num_batches_K.sum())

    def num_batches(self, epoch: int) -> int:
        """The same in every epoch."""
        return self._total

    def batch(self, epoch: int, slot: int) -> Batch:
        """The batch at one slot of an epoch's interleaved order."""
        phases_K = self._phases(epoch)
        bucket_1, number_1 = interleaved_window(self.layout.num_batches_K, phases_K, slot, slot + 1)
        bucket, number = int(bucket_1[0]), int(number_1[0])
        number = (number + self._turn(epoch, bucket)) % int(self.layout.num_batches_K[bucket])
        rows = int(self.rows_K[bucket])
        positions = np.arange(number * rows, min((number + 1) * rows, int(self.layout.kept_K[bucket])))
        sample_ids = self._samples(epoch, bucket, positions)
        return Batch(sample_ids, np.arange(len(sample_ids) + 1), int(self.widths_K[bucket]), bucket)

    def index(self, epoch: int) -> EpochIndex:
        """All batches of an epoch in slot order; for tables and diagnostics."""
        bucket, number = interleaved(self.layout.num_batches_K, self._phases(epoch))
        turns_K = np.array([self._turn(epoch, each) for each in range(len(self.rows_K))], np.int64)
        number = (number + turns_K[bucket]) % np.maximum(self.layout.num_batches_K, 1)[bucket]
        first = number * self.rows_K[bucket]
        rows = np.minimum(first + self.rows_K[bucket], self.layout.kept_K[bucket]) - first
        shuffled = [
            self._samples(epoch, each, np.arange(kept))
            for each, kept in enumerate(self.layout.kept_K.tolist())
        ]
        starts_K = np.cumsum(self.layout.kept_K) - self.layout.kept_K
        offsets = np.concatenate([[0], np.cumsum(rows)])
        source = np.arange(int(offsets[-1])) + np.repeat(starts_K[bucket] + first - offsets[:-1], rows)
        samples = np.concatenate(shuffled)[source] if shuffled else np.zeros(0, np.int64)
        return EpochIndex(samples, offsets, self.widths_K[bucket], bucket, rows)

    def _samples(self, epoch: int, bucket: int, positions: np.ndarray) -> np.ndarray:
        """Sample ids at positions of a bucket's shuffle; promoted ones are looked up in the bucket below."""
        sample_ids = np.empty(len(positions), np.int64)
        pending = np.arange(len(positions))
        while len(pending):
            own = int(self.counts_K[bucket])
            key = key_of(self.seed, epoch, bucket, _SHUFFLE)
            place = permuted(key, int(self.layout.total_K[bucket]), positions)
            mine = place < own
            sample_ids[pending[mine]] = self.order[self.starts_K[bucket] + place[mine]]
            pending, place = pending[~mine], place[~mine]
            bucket -= 1
            if len(pending):
                positions = self.layout.kept_K[bucket] + place - own
        return sample_ids

    def _phases(self, epoch: int) -> np.ndarray:
        return uniform(key_of(self.seed, epoch, _PHASE), np.arange(len(self.rows_K)))

    def _turn(self, epoch: int, bucket: int) -> int:
        """Where the short batch of a bucket stands among its batches; else it would always come last."""
        total = max(1, int(self.layout.num_batches_K[bucket]))
        return int(hashes(key_of(self.seed, epoch, _TURN), np.array([bucket]))[0] % np.uint64(total))
