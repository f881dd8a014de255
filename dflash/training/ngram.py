"""An n-gram model over tokens: what the demo target has to beat on the same held-out text.

Interpolated Kneser-Ney smoothing with one discount (Kneser and Ney, 1995; Chen and Goodman, 1999, section 2.7). An
n-gram is one integer of 12 bits a token, so counts are sorted arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BITS = 12
DISCOUNT = 0.75


@dataclass(frozen=True)
class Order:
    """Counts of one order: sorted n-grams, and for their contexts the total and the number of distinct followers."""

    grams: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray
    followers: np.ndarray


def fit_ngrams(documents: Sequence[np.ndarray], order: int, vocabulary: int) -> list[Order]:
    """Count the n-grams of orders 1 to `order` (at most 5).

    The highest order counts occurrences; lower ones count the distinct tokens seen before (continuation counts).

    Args:
        documents: token ids, int [length] each.
        order: the longest n-gram.
        vocabulary: number of tokens, at most 4,096.

    Raises:
        ValueError: an n-gram would not fit into 63 bits.
    """
    if not 1 <= order <= 5 or vocabulary > 1 << BITS:
        raise ValueError(
            f"order is {order} and vocabulary {vocabulary}; at most 5 and {1 << BITS} are possible"
        )
    grams, counts = np.unique(np.concatenate([_grams(each, order) for each in documents]), return_counts=True)
    orders = [_order(grams, counts)]
    for length in range(order - 1, 0, -1):
        grams, counts = np.unique(grams & _mask(length), return_counts=True)
        orders.append(_order(grams, counts))
    return orders[::-1]


def ngram_nats(orders: Sequence[Order], document: np.ndarray, vocabulary: int) -> float:
    """Nats that the model spends on the tokens of a document after the first."""
    grams = _grams(document, len(orders))
    probability = np.full(len(grams), 1.0 / vocabulary)
    for length, each in enumerate(orders, start=1):
        codes = grams & _mask(length)
        counts = _look_up(each.grams, each.counts, codes)
        totals = _look_up(each.contexts, each.totals, codes >> BITS)
        followers = _look_up(each.contexts, each.followers, codes >> BITS)
        seen = totals > 0
        mixed = np.maximum(counts - DISCOUNT, 0.0) + DISCOUNT * followers * probability
        probability = np.where(seen, mixed / np.maximum(totals, 1), probability)
    return float(-np.log(probability[1:]).sum())


def _grams(document: np.ndarray, order: int) -> np.ndarray:
    """The n-gram that ends at each token; token 0 stands before the begin."""
    padded = np.concatenate([np.zeros(order - 1, np.int64), document.astype(np.int64)])
    grams = np.zeros(len(document), np.int64)
    for place in range(order):
        grams = (grams << BITS) | padded[place : place + len(document)]
    return grams


def _mask(length: int) -> int:
    return (1 << (BITS * length)) - 1


def _order(grams: np.ndarray, counts: np.ndarray) -> Order:
    contexts, first, followers = np.unique(grams >> BITS, return_index=True, return_counts=True)
    return Order(grams, counts, contexts, np.add.reduceat(counts, first), followers)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Values of the wanted keys; 0 where a key is unknown."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)
