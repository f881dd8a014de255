"""Randomness by key: every value is a function of (key, index), none depends on what was drawn before.

SplitMix64 (Steele, Lea, Flood 2014) hashes; a Feistel network with cycle walking (Black and Rogaway 2002) permutes
positions one by one, so that any sample of any epoch is found without building the epoch.
"""

import numpy as np

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_ROUNDS = 6


def key_of(*parts: int) -> int:
    """One 64-bit key from integers, such as (seed, epoch, bucket, purpose). The order of the parts matters."""
    state = 0
    for part in parts:
        state = _mix((state + _GOLDEN + (part & _MASK)) & _MASK)
    return state


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def hashes(key: int, index: np.ndarray) -> np.ndarray:
    """uint64 hashes of nonnegative integers under a key, the shape of `index`."""
    value = index.astype(np.uint64)
    value *= np.uint64(_GOLDEN)
    value += np.uint64(key)
    value ^= value >> np.uint64(30)
    value *= np.uint64(_FIRST)
    value ^= value >> np.uint64(27)
    value *= np.uint64(_SECOND)
    value ^= value >> np.uint64(31)
    return value


def uniform(key: int, index: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) of nonnegative integers under a key."""
    return (hashes(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permuted(key: int, size: int, positions: np.ndarray) -> np.ndarray:
    """Where a keyed permutation of `range(size)` sends positions.

    Args:
        key: 64-bit key.
        size: length of the permuted range.
        positions: integers in [0, size), any shape.

    Returns:
        int64 in [0, size), the shape of `positions`; distinct for distinct positions.
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    keys = [np.uint64(key_of(key, number)) for number in range(_ROUNDS)]
    value = _feistel(positions.astype(np.uint64), half, keys)
    outside = value >= np.uint64(size)
    while outside.any():
        value[outside] = _feistel(value[outside], half, keys)
        outside = value >= np.uint64(size)
    return value.astype(np.int64)


def _feistel(value: np.ndarray, half: int, keys: list[np.uint64]) -> np.ndarray:
    """One pass of the network over numbers of 2 x `half` bits."""
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = value >> bits, value & mask
    for key in keys:
        mixed = (right + key) * np.uint64(_FIRST)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(_SECOND)
        mixed ^= mixed >> np.uint64(29)
        left, right = right, left ^ (mixed & mask)
    return (left << bits) | right


def permutation(key: int, size: int) -> np.ndarray:
    """A whole keyed permutation of `range(size)`, int64: the order of hashes that carry their index in the low bits.

    The hash keeps at least 64 - ceil(log2(size)) bits; ties among those are broken by index, which is negligible.
    """
    bits = max(size - 1, 1).bit_length()
    low = np.uint64((1 << bits) - 1)
    index = np.arange(size, dtype=np.uint64)
    fused = hashes(key, index) & ~low
    fused |= index
    fused.sort()
    return (fused & low).astype(np.int64)
