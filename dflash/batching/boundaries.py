"""Where buckets end: the exact optimum of a Monge dynamic programme, for any nondecreasing price.

With distinct widths u_1 < ... < u_n, cumulative counts C and a per-sample price g, a bucket over (i, j] costs
g(u_j) (C_j - C_i). For nondecreasing g this cost obeys the quadrangle inequality, so the best last cut of a prefix
moves right with the prefix (Yao 1980; Aggarwal et al. 1987). Each layer is solved by divide and conquer, all nodes
of a level at once: O(n log n) a layer in whole-array operations.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Below this many nodes a level is solved node by node on plain slices, which moves less memory.
_FEW_NODES = 256


@dataclass(frozen=True)
class Curve:
    """The best boundaries for every number of buckets up to a limit.

    Attributes:
        widths: int64, distinct increasing widths that a bucket may end at.
        totals: float64, price of the samples with 1, 2, ... buckets; convex and decreasing.
        cuts: of each layer, the start of the last bucket of every prefix.
    """

    widths: np.ndarray
    totals: np.ndarray
    cuts: list[np.ndarray]

    def boundaries(self, num_buckets: int) -> np.ndarray:
        """Increasing upper bounds of the best buckets, int64; the last covers the longest sample.

        Fewer than `num_buckets` where one more saves nothing; none for an empty histogram.
        """
        ends = []
        end = len(self.widths)
        for cut in reversed(self.cuts[:num_buckets]):
            if end == 0:
                break
            ends.append(end)
            end = int(cut[end])
        return self.widths[np.array(ends[::-1], dtype=np.int64) - 1]


def best_boundaries(widths: np.ndarray, counts: np.ndarray, prices: np.ndarray, *, num_buckets: int) -> Curve:
    """Solve a histogram for 1 to `num_buckets` buckets.

    Args:
        widths: distinct increasing widths that a bucket may end at.
        counts: samples at each, at least 1.
        prices: nondecreasing price of padding one sample to each.
        num_buckets: buckets at most; clamped to the number of distinct widths.

    Raises:
        ValueError: prices decrease, or `num_buckets` is below 1.
    """
    if num_buckets < 1:
        raise ValueError(f"num_buckets is {num_buckets}; a plan needs at least 1 bucket")
    falling = np.flatnonzero(np.diff(prices) < 0)
    if falling.size:
        at = int(falling[0])
        raise ValueError(
            f"the price falls from {prices[at]} at width {widths[at]} to {prices[at + 1]} at width {widths[at + 1]}; "
            "it must not decrease"
        )
    layers = _layers(np.asarray(counts, np.float64), np.asarray(prices, np.float64))
    solved = [next(layers) for _ in range(min(num_buckets, len(widths)))]
    totals = np.array([total for total, _ in solved])
    return Curve(np.asarray(widths, np.int64), totals, [cut for _, cut in solved])


def _layers(counts: np.ndarray, prices: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """Best total with at most 1, 2, ... buckets, and the start of the last bucket of every prefix, int32[n + 1]."""
    cumulative = np.concatenate([[0.0], np.cumsum(counts)])
    price = np.concatenate([[0.0], prices])
    best = price * cumulative
    yield float(best[-1]), np.zeros(len(best), np.int32)
    while True:
        cut = _best_cuts(best, cumulative, price)
        best = best[cut] + price * (cumulative - cumulative[cut])
        yield float(best[-1]), cut.astype(np.int32)


def _best_cuts(best: np.ndarray, cumulative: np.ndarray, price: np.ndarray) -> np.ndarray:
    """For every prefix j >= 1 the i < j that minimizes best[i] - price[j] x cumulative[i]; smallest on ties."""
    size = len(best)
    cut = np.zeros(size, np.int64)
    stride = 1 << max(size - 2, 0).bit_length()
    while stride:
        nodes = np.arange(stride, size, 2 * stride)
        low = cut[nodes - stride]
        right = nodes + stride
        high = np.where(right < size, cut[np.minimum(right, size - 1)], nodes - 1)
        high = np.minimum(high, nodes - 1)
        if len(nodes) <= _FEW_NODES:
            for node, first, last in zip(nodes.tolist(), low.tolist(), high.tolist(), strict=True):
                span = slice(first, last + 1)
                cut[node] = first + int((best[span] - price[node] * cumulative[span]).argmin())
        else:
            cut[nodes] = _first_minimum(best, cumulative, price[nodes], low, high)
        stride >>= 1
    return cut


def _first_minimum(
    best: np.ndarray, cumulative: np.ndarray, price: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """For every node the first i in [low, high] that minimizes best[i] - price x cumulative[i]."""
    spans = high - low + 1
    starts = np.cumsum(spans) - spans
    index = np.arange(int(spans.sum()))
    index += np.repeat(low - starts, spans)
    value = np.repeat(-price, spans)
    value *= cumulative[index]
    value += best[index]
    lowest = np.minimum.reduceat(value, starts)
    hits = np.flatnonzero(value == np.repeat(lowest, spans))
    return index[hits[np.searchsorted(hits, starts)]]
