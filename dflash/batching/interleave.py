"""Merging buckets by low discrepancy: every window of slots holds every bucket in proportion, give or take one.

The j-th batch of bucket k stands at (j + phase_k) / n_k on [0, 1); slots are those places in order. A window of
slots is found without building the order: before x there are ceil(n_k x - phase_k) batches of bucket k, so a few
candidates around the window suffice.
"""

import numpy as np


def interleaved(num_batches_K: np.ndarray, phases_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bucket and number within the bucket of every slot, int64 both."""
    bucket = np.repeat(np.arange(len(num_batches_K)), num_batches_K)
    number = np.arange(len(bucket)) - np.repeat(np.cumsum(num_batches_K) - num_batches_K, num_batches_K)
    order = np.argsort(_places(bucket, number, num_batches_K, phases_K), kind="stable")
    return bucket[order], number[order]


def interleaved_window(
    num_batches_K: np.ndarray, phases_K: np.ndarray, first: int, last: int
) -> tuple[np.ndarray, np.ndarray]:
    """The slots [first, last) of `interleaved`, in time and memory of last - first + 3 K."""
    total = int(num_batches_K.sum())
    num_buckets = len(num_batches_K)
    # Rounding each bucket up moves the count before x by less than K from total x, so these x enclose the window.
    low = (first - num_buckets) / total
    high = (last + num_buckets) / total
    start_K = np.clip(np.floor(num_batches_K * low - phases_K).astype(np.int64) - 1, 0, num_batches_K)
    stop_K = np.clip(np.ceil(num_batches_K * high - phases_K).astype(np.int64) + 1, 0, num_batches_K)
    spans = stop_K - start_K
    bucket = np.repeat(np.arange(num_buckets), spans)
    number = np.arange(len(bucket)) - np.repeat(np.cumsum(spans) - spans - start_K, spans)
    places = _places(bucket, number, num_batches_K, phases_K)
    order = np.argsort(places, kind="stable")
    # What is left out on the left stands before `low`, and fewer than `first` batches do.
    skipped = int(start_K.sum())
    chosen = order[first - skipped : last - skipped]
    return bucket[chosen], number[chosen]


def _places(
    bucket: np.ndarray, number: np.ndarray, num_batches_K: np.ndarray, phases_K: np.ndarray
) -> np.ndarray:
    return (number + phases_K[bucket]) / num_batches_K[bucket]
