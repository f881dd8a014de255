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
class Boundaries:
    """The chosen widths and what was paid for them.

    Attributes:
        widths: int64, increasing upper bounds; the last covers the longest sample.
        price: total price of the samples padded to them.
        curve: total price of the best 1, 2, ... buckets that were looked at.
    """

    widths: np.ndarray
    price: float
    curve: np.ndarray


def optimal_boundaries(
    widths: np.ndarray, counts: np.ndarray, prices: np.ndarray, *, num_buckets: int, shape_price: float = 0.0
) -> Boundaries:
    """Best boundaries for a histogram.

    Args:
        widths: int64, distinct increasing widths that a bucket may end at.
        counts: samples at each, at least 1.
        prices: nondecreasing price of padding one sample to each.
        num_buckets: buckets at most; clamped to the number of distinct widths.
        shape_price: price of one more bucket. Buckets are added while the next one saves more (the total is convex
            in their number); 0 takes `num_buckets`.

    Returns:
        The boundaries; none for an empty histogram.

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
    if len(widths) == 0:
        return Boundaries(np.zeros(0, np.int64), 0.0, np.zeros(0))
    totals: list[float] = []
    cuts: list[np.ndarray] = []
    for total, cut in _layers(np.asarray(counts, np.float64), np.asarray(prices, np.float64)):
        if totals and totals[-1] - total <= shape_price:
            break
        totals.append(total)
        cuts.append(cut)
        if len(totals) == min(num_buckets, len(widths)):
            break
    ends = []
    end = len(widths)
    for cut in reversed(cuts):
        if end == 0:
            break
        ends.append(end)
        end = int(cut[end])
    return Boundaries(np.asarray(widths, np.int64)[np.array(ends[::-1]) - 1], totals[-1], np.array(totals))


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
