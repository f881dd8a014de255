"""The `packed` policy: several documents in a row, laid by best fit over a fresh shuffle, window by window.

A window's documents are placed one after another, each into the fullest of at most `OPEN_ROWS` open rows that still
holds it; where none does, the fullest is closed and a new one opened. Nothing is sorted, so rows mix lengths and
partners change every epoch. All windows advance together, one document each, in whole-array operations.
"""

import numpy as np

from dflash.batching.batch import EpochIndex
from dflash.batching.cost import Limits
from dflash.batching.keyed import key_of, permutation

_ORDER = 31
OPEN_ROWS = 16
"""Rows of a window that are open at once (a power of two)."""


def packed_index(
    samples_N: np.ndarray,
    lengths_N: np.ndarray,
    anchors_N: np.ndarray,
    limits: Limits,
    width: int,
    window: int,
    key: int,
) -> EpochIndex:
    """The packed rows of an epoch; every micro-batch is one row of `width` tokens.

    Args:
        samples_N: sample ids that are planned.
        lengths_N: tokens of each, at most `width`.
        anchors_N: expected anchors of each.
        limits: budgets of a row; attention is that of each document for itself.
        width: tokens of a row.
        window: samples that are packed together.
        key: of the shuffle; one an epoch.
    """
    shuffled = permutation(key_of(key, _ORDER), len(samples_N))
    rows_LW = pack_windows(lengths_N[shuffled], anchors_N[shuffled], limits, width, window)
    order, starts = _by_row(rows_LW, len(shuffled))
    size = len(shuffled)
    total = len(starts)
    return EpochIndex(
        samples_N[shuffled[order]],
        np.append(starts, size),
        np.full(total, width, np.int64),
        np.zeros(total, np.int64),
        np.ones(total, np.int64),
    )


def pack_windows(
    lengths_N: np.ndarray, anchors_N: np.ndarray, limits: Limits, width: int, window: int
) -> np.ndarray:
    """Row of every document inside its window, int32[windows, window]; behind the last document it means nothing.

    Documents that break a budget alone get a row of their own.
    """
    size = len(lengths_N)
    lanes = -(-size // window)
    needs = [(lengths_N, width)]
    if limits.attention_tokens is not None:
        needs.append((np.ceil(limits.cost(lengths_N)).astype(np.int64), limits.budget_tokens))
    if int(anchors_N.sum()) and limits.budget_anchors < width:
        needs.append((anchors_N, limits.budget_anchors))
    queues = [_transposed(np.minimum(need, room), lanes, window) for need, room in needs]
    rooms = [np.full((OPEN_ROWS, lanes), room, np.int32) for _, room in needs]
    row_WL = np.zeros((window, lanes), np.int32)
    open_rows = np.zeros((OPEN_ROWS, lanes), np.int32)
    opened = np.zeros(lanes, np.int32)
    lane = np.arange(lanes)
    place = np.arange(OPEN_ROWS, dtype=np.int32)[:, None]
    shut = np.int32(np.iinfo(np.int32).max)
    full = [np.int32(room) for _, room in needs]
    open_rows[:] = -1
    for step in range(min(window, size)):
        # Room and place in one number: its minimum is the fullest row that holds the document, and where it stands.
        ranked = rooms[0] * np.int32(OPEN_ROWS) + place
        holds = rooms[0] >= queues[0][step]
        for room, queue in zip(rooms[1:], queues[1:], strict=True):
            holds &= room >= queue[step]
        best = np.where(holds, ranked, shut).min(axis=0)
        lost = best == shut
        if lost.any():
            best = np.where(lost, ranked.min(axis=0), best)
        chosen = best & np.int32(OPEN_ROWS - 1)
        fresh = lost | (open_rows[chosen, lane] < 0)
        open_rows[chosen, lane] = np.where(fresh, opened, open_rows[chosen, lane])
        opened += fresh
        for room, queue, whole in zip(rooms, queues, full, strict=True):
            room[chosen, lane] = np.where(lost, whole, room[chosen, lane]) - queue[step]
        row_WL[step] = open_rows[chosen, lane]
    return np.ascontiguousarray(row_WL.T)


def _by_row(rows_LW: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents row by row, in their order inside each, int64[size]; and where rows start, int64.

    Rows never span windows, so each window is sorted by itself, row and place as one number.
    """
    lanes, window = rows_LW.shape
    bits = max(window - 1, 1).bit_length()
    dtype = np.uint32 if 2 * bits <= 32 else np.uint64
    fused: np.ndarray = rows_LW.astype(dtype)
    # What is missing in the last window has the highest row, so that it comes last.
    fused.ravel()[size:] = (1 << bits) - 1
    fused <<= bits
    fused |= np.arange(window, dtype=dtype)
    fused.sort(axis=1)
    rows = fused >> bits
    begins = np.ones((lanes, window), bool)
    np.not_equal(rows[:, 1:], rows[:, :-1], out=begins[:, 1:])
    fused &= (1 << bits) - 1
    order = fused.astype(np.int64)
    order += np.arange(lanes)[:, None] * window
    return order.ravel()[:size], np.flatnonzero(begins.ravel()[:size])


def _transposed(values_N: np.ndarray, lanes: int, window: int) -> np.ndarray:
    """int32[window, lanes]; what is missing in the last window is 0."""
    padded = np.zeros(lanes * window, np.int32)
    padded[: len(values_N)] = values_N
    return np.ascontiguousarray(padded.reshape(lanes, window).T)
