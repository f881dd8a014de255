"""The optimum is the optimum: brute force on small cases, an independent method on large ones, published figures."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from dflash.batching.boundaries import best_boundaries
from tests.batching.distributions import NAMES, histogram

PRICES = {
    "tokens": lambda u: u.astype(float),
    "attention": lambda u: u + u * u / 40.0,
    "rounded": lambda u: np.ceil(u / 8) * 8.0,
    "micro_batch": lambda u: u + 0.1 * 256 / np.maximum(256 // u, 1),
    "memory": lambda u: 3.0 + 2.0 * u + u * u / 100.0,
}


def brute_force(widths: np.ndarray, counts: np.ndarray, prices: np.ndarray, number: int) -> float:
    best = np.inf
    for inner in combinations(range(1, len(widths)), number - 1):
        cuts = [0, *inner, len(widths)]
        total = sum(prices[b - 1] * counts[a:b].sum() for a, b in pairwise(cuts))
        best = min(best, total)
    return float(best)


@pytest.mark.parametrize("family", PRICES)
def test_brute_force_agrees(family: str) -> None:
    rng = np.random.default_rng(sum(map(ord, family)))
    for _ in range(80):
        size = int(rng.integers(1, 9))
        widths = np.sort(rng.choice(np.arange(1, 200), size, replace=False)).astype(np.int64)
        counts = rng.integers(1, 50, size)
        prices = PRICES[family](widths)
        curve = best_boundaries(widths, counts, prices, num_buckets=size)
        for number in range(1, size + 1):
            want = brute_force(widths, counts, prices, number)
            assert curve.totals[number - 1] == pytest.approx(want)
            bounds = curve.boundaries(number)
            bucket = np.searchsorted(bounds, widths)
            priced = PRICES[family](bounds)[bucket]
            assert (counts * priced).sum() == pytest.approx(want)
            assert bounds[-1] == widths[-1] and (np.diff(bounds) > 0).all()


def hull(widths: np.ndarray, counts: np.ndarray, prices: np.ndarray, number: int) -> float:
    """O(K n): each layer is a lower envelope of lines with monotone slopes, met by monotone queries."""
    cumulative = np.concatenate([[0], np.cumsum(counts)]).astype(float)
    best = np.concatenate([[0.0], np.full(len(widths), np.inf)])
    for _ in range(number):
        lines: list[tuple[float, float]] = []
        pointer, following = 0, np.full(len(best), np.inf)
        for j in range(1, len(best)):
            if np.isfinite(best[j - 1]):
                # cost of cutting at i: best[i] - price * cumulative[i]; slope falls with i
                slope, offset = -cumulative[j - 1], best[j - 1]
                while len(lines) >= 2 and _useless(lines[-2], lines[-1], (slope, offset)):
                    lines.pop()
                lines.append((slope, offset))
                pointer = min(pointer, len(lines) - 1)
            if not lines:
                continue
            price = prices[j - 1]
            while pointer + 1 < len(lines) and _at(lines[pointer + 1], price) <= _at(lines[pointer], price):
                pointer += 1
            following[j] = _at(lines[pointer], price) + price * cumulative[j]
        best = following
    return float(best[-1])


def _at(line: tuple[float, float], price: float) -> float:
    return line[0] * price + line[1]


def _useless(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (c[1] - a[1]) * (a[0] - b[0]) <= (b[1] - a[1]) * (a[0] - c[0])


@pytest.mark.parametrize("name", NAMES)
def test_an_independent_method_agrees(name: str) -> None:
    widths, counts = histogram(name)
    for prices in (widths.astype(float), widths + widths.astype(float) ** 2 / 4096):
        curve = best_boundaries(widths, counts, prices, num_buckets=8)
        for number in (2, 8):
            assert curve.totals[number - 1] == pytest.approx(hull(widths, counts, prices, number))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("lognormal", {8: 0.775, 16: 0.880, 32: 0.938}),
        ("bimodal", {8: 0.901, 16: 0.948, 32: 0.973}),
        ("stdlib", {8: 0.708, 16: 0.851, 32: 0.925}),
    ],
)
def test_padding_efficiency_of_the_published_distributions(name: str, wanted: dict[int, float]) -> None:
    widths, counts = histogram(name)
    curve = best_boundaries(widths, counts, widths.astype(float), num_buckets=32)
    useful = float((widths * counts).sum())
    for number, efficiency in wanted.items():
        assert useful / curve.totals[number - 1] >= efficiency


def test_one_more_bucket_never_costs_and_gains_shrink() -> None:
    widths, counts = histogram("lognormal")
    totals = best_boundaries(widths, counts, widths.astype(float), num_buckets=40).totals
    gains = -np.diff(totals)
    assert (gains >= 0).all()
    assert (np.diff(gains) <= 1e-6 * totals[0]).all()


def test_more_buckets_than_lengths_and_none_at_all() -> None:
    curve = best_boundaries(np.array([5, 9]), np.array([3, 1]), np.array([5.0, 9.0]), num_buckets=7)
    assert curve.boundaries(7).tolist() == [5, 9]
    empty = best_boundaries(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), num_buckets=3)
    assert empty.boundaries(3).tolist() == []


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="num_buckets is 0"):
        best_boundaries(np.array([5]), np.array([1]), np.array([5.0]), num_buckets=0)
    with pytest.raises(ValueError, match=r"the price falls from 5\.0 at width 5 to 4\.0 at width 9"):
        best_boundaries(np.array([5, 9]), np.array([1, 1]), np.array([5.0, 4.0]), num_buckets=1)
