"""What other rules for boundaries would give on the same histogram, and what a closed form predicts for the best."""

import numpy as np


def padding_efficiency(widths: np.ndarray, counts: np.ndarray, useful: float, bounds: np.ndarray) -> float:
    """Useful over padded tokens if every sample is padded to the first bound that holds it.

    Args:
        widths: aligned widths of the histogram.
        counts: samples at each.
        useful: real tokens of all samples.
        bounds: increasing upper bounds that cover the widths.
    """
    padded = float((bounds[np.searchsorted(bounds, widths)] * counts).sum())
    return useful / padded


def equal_width(widths: np.ndarray, num_buckets: int) -> np.ndarray:
    """Bounds at equal distances up to the longest sample, as widths that occur."""
    return _at_least(widths, widths[-1] * np.arange(1, num_buckets + 1) / num_buckets)


def equal_count(widths: np.ndarray, counts: np.ndarray, num_buckets: int) -> np.ndarray:
    """Quantile bounds: equally many samples in each bucket."""
    return _by_mass(widths, counts.astype(np.float64), num_buckets)


def equal_tokens(widths: np.ndarray, counts: np.ndarray, num_buckets: int) -> np.ndarray:
    """Equally many tokens in each bucket, the rule of lhotse's dynamic bucketing."""
    return _by_mass(widths, counts * widths.astype(np.float64), num_buckets)


def _by_mass(widths: np.ndarray, mass: np.ndarray, num_buckets: int) -> np.ndarray:
    cumulative = np.cumsum(mass)
    # A hair below the exact share, so that rounding never moves a bound past a width that reaches it.
    wanted = cumulative[-1] * (np.arange(1, num_buckets + 1) / num_buckets - 1e-12)
    chosen = np.minimum(np.searchsorted(cumulative, wanted), len(widths) - 1)
    chosen[-1] = len(widths) - 1
    return np.unique(widths[chosen])


def _at_least(widths: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    return np.unique(widths[np.minimum(np.searchsorted(widths, bounds - 1e-9), len(widths) - 1)])


def waste_constant(lengths: np.ndarray, counts: np.ndarray) -> float:
    """A in padded / useful - 1 = A / K, for the best K buckets and many of them.

    With local bucket width h(u) the padding is h / 2 a sample and the integral of du / h is K; the best h goes with
    1 / sqrt(p), so A = (integral of sqrt(p))^2 / (2 mean). p is the share of samples per token of length, smoothed
    over an eighth of the length; the atom at the longest length pays no padding and is left out.
    """
    dense = np.bincount(lengths, weights=counts)
    mean = float((dense * np.arange(len(dense))).sum() / dense.sum())
    dense = dense / dense.sum()
    dense[-1] = 0.0
    cumulative = np.concatenate([[0.0], np.cumsum(dense)])
    at = np.arange(len(dense))
    half = at // 16
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(dense))
    smoothed = (cumulative[high] - cumulative[low]) / (high - low)
    return float(np.sqrt(np.maximum(smoothed, 0.0)).sum() ** 2 / (2 * mean))
