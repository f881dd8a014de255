"""The policies that build one index an epoch: `pooled`, and the baselines `sorted` and `random`.

Samples are put in an order (shuffled; shuffled and sorted inside pools; sorted) and cut greedily. Widths vary from
batch to batch. Cutting is sequential by nature, so the order is cut in segments, all segments at once.
"""

from collections.abc import Callable

import numpy as np

from dflash.batching.batch import Batch, EpochIndex
from dflash.batching.cost import Limits
from dflash.batching.keyed import key_of, permutation

_ORDER = 21
# Samples of a segment where no pool sets it: long enough that its last, short batch does not count.
SEGMENT = 1 << 14


class Indexed:
    """Batches of a policy that must build an epoch before it can answer; the last epoch asked for is kept."""

    def __init__(self, build: Callable[[int], EpochIndex]) -> None:
        """Args: build: makes all batches of an epoch."""
        self._build = build
        self._epoch = -1
        self._index: EpochIndex | None = None

    def index(self, epoch: int) -> EpochIndex:
        """All batches of an epoch in order."""
        if self._index is None or self._epoch != epoch:
            self._index, self._epoch = self._build(epoch), epoch
        return self._index

    def num_batches(self, epoch: int) -> int:
        """Batches of an epoch; may differ by epoch."""
        return len(self.index(epoch).rows)

    def batch(self, epoch: int, slot: int) -> Batch:
        """One batch by its place in the epoch's order."""
        return self.index(epoch).batch(slot)


def greedy_index(
    samples_N: np.ndarray,
    widths_N: np.ndarray,
    anchors_N: np.ndarray,
    plan_widths: np.ndarray,
    limits: Limits,
    order: str,
    pool: int,
    key: int,
) -> EpochIndex:
    """The batches of an epoch in policy order.

    Args:
        samples_N: sample ids that are planned.
        widths_N: aligned width of each.
        anchors_N: expected anchors of each.
        plan_widths: distinct widths, increasing.
        limits: what a batch may hold.
        order: `sorted` (by width, the same every epoch), `random`, or `pooled` (shuffled, sorted inside pools).
        pool: samples of a pool.
        key: of the shuffle; one an epoch.
    """
    segment = pool if order == "pooled" else SEGMENT
    if order == "sorted":
        chosen = np.argsort(widths_N, kind="stable")
    else:
        chosen = permutation(key_of(key, _ORDER), len(samples_N))
        if order == "pooled":
            chosen = _sorted_inside(chosen, widths_N, pool)
    starts = greedy_cut(widths_N[chosen], anchors_N[chosen], limits, segment)
    offsets = np.append(starts, len(chosen))
    widths = np.maximum.reduceat(widths_N[chosen], starts) if len(starts) else np.zeros(0, np.int64)
    buckets = np.searchsorted(plan_widths, widths)
    return EpochIndex(samples_N[chosen], offsets, widths.astype(np.int64), buckets, np.diff(offsets))


def pool_size(widths_N: np.ndarray, limits: Limits, pool_batches: int) -> int:
    """Samples of a pool: `pool_batches` batches' worth at the mean cost."""
    mean = float(limits.cost(widths_N).mean()) if len(widths_N) else 1.0
    return max(1, round(pool_batches * limits.budget_tokens / mean))


def _sorted_inside(chosen: np.ndarray, widths_N: np.ndarray, pool: int) -> np.ndarray:
    """Sort an order by width inside consecutive pools, by one fused key."""
    size = len(chosen)
    place = np.arange(size, dtype=np.uint64)
    bits = np.uint64(max(size - 1, 1).bit_length())
    width = widths_N[chosen].astype(np.uint64)
    width_bits = np.uint64(int(width.max()).bit_length()) if size else np.uint64(0)
    fused = (((place // np.uint64(pool)) << width_bits) | width) << bits | place
    fused.sort()
    return chosen[(fused & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)]


def greedy_cut(widths_N: np.ndarray, anchors_N: np.ndarray, limits: Limits, segment: int) -> np.ndarray:
    """Where batches start if each takes samples while it holds; a batch never spans two segments.

    Args:
        widths_N: widths in order.
        anchors_N: anchors in order.
        limits: what a batch may hold; a single sample always does.
        segment: samples of a segment.

    Returns:
        int64 starts, increasing.
    """
    size = len(widths_N)
    lanes = -(-size // segment)
    padded = np.zeros((2, lanes * segment), np.int64)
    padded[0, :size], padded[1, :size] = widths_N, anchors_N
    # Transposed, so that one step over all segments reads a contiguous row.
    width_SW, anchor_SW = (np.ascontiguousarray(each.reshape(lanes, segment).T) for each in padded)
    starts_SW = np.zeros((segment, lanes), bool)
    rows, widest, anchors = (np.zeros(lanes, np.int64) for _ in range(3))
    for step in range(min(segment, size)):
        wider = np.maximum(widest, width_SW[step])
        more_anchors = anchors + anchor_SW[step]
        more = rows + 1
        close = limits.cost(wider) * more > limits.budget_tokens
        close |= wider * more > limits.largest_width
        close |= more_anchors > limits.budget_anchors
        close |= rows == 0
        starts_SW[step] = close
        rows = np.where(close, 1, more)
        widest = np.where(close, width_SW[step], wider)
        anchors = np.where(close, anchor_SW[step], more_anchors)
    return np.flatnonzero(starts_SW.T.ravel()[:size])
