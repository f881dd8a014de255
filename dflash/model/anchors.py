"""Which positions of a micro-batch become anchors, and which slots of their blocks are supervised.

Every candidate has a key, hash(seed, epoch, sample, position), and the caps keep the smallest keys. So the anchors of a
sample follow from the sample alone: not from its row, its batch or the policy that made the batch (unless the cap of
the micro-batch bites, which is counted). Everything is ragged: no slot is ever padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash.batching.keyed import hashes, key_of


@dataclass(frozen=True)
class AnchorRules:
    """How many of the valid positions become anchors.

    Attributes:
        share: of a sample's valid positions, rounded up.
        max_per_sample, max_per_micro_batch: caps.
        seed: of the keys.
    """

    share: float
    max_per_sample: int
    max_per_micro_batch: int
    seed: int


@dataclass(frozen=True)
class Anchors:
    """The anchors of a micro-batch, sorted by (row, position). int64 [A] each.

    Attributes:
        rows_A: row. anchors_A: place in the row.
        starts_A, ends_A: places of the first token of the anchor's document and of the one after its last.
        num_cut: anchors that the micro-batch's cap took away.
    """

    rows_A: np.ndarray
    starts_A: np.ndarray
    ends_A: np.ndarray
    anchors_A: np.ndarray
    num_cut: int


@dataclass(frozen=True)
class Slots:
    """The supervised slots of a micro-batch, sorted by (block, slot). int64 [M] each.

    Attributes:
        blocks_M: number of the block (the index into the anchors). slots_M: slot in the block, from 1.
        rows_M, places_M: row and place of the label; the target predicts it at the place before.
    """

    blocks_M: np.ndarray
    slots_M: np.ndarray
    rows_M: np.ndarray
    places_M: np.ndarray


def choose_anchors(
    masks: Sequence[np.ndarray], keys_N: np.ndarray, row_offsets: np.ndarray, epoch: int, rules: AnchorRules
) -> Anchors:
    """Choose the anchors of a micro-batch.

    A position is valid where it and the next one are supervised tokens of one document: there the drafter has a
    committed token to start from and at least one to predict. Blocks may reach over the end of their document; slots
    there are not supervised.

    Args:
        masks: uint8 loss mask of every document, in the order of the rows.
        keys_N: uint64 key of every document's sample.
        row_offsets: int64 [B + 1]; row r holds the documents row_offsets[r] to row_offsets[r + 1].
        epoch: anchors are drawn again every epoch.
        rules: how many.
    """
    lengths_N = np.array([len(mask) for mask in masks], dtype=np.int64)
    starts_N, rows_N = _layout(lengths_N, row_offsets)
    documents, positions = _valid_positions(masks)
    sample_hashes_N = hashes(key_of(rules.seed, epoch), keys_N)
    keys = hashes(0, sample_hashes_N[documents] + positions.astype(np.uint64))
    kept = _smallest_of_each(documents, keys, _allowed(documents, len(masks), rules))
    num_cut = max(0, len(kept) - rules.max_per_micro_batch)
    if num_cut:
        order = np.argsort(keys[kept], kind="stable")
        kept = np.sort(kept[order[: rules.max_per_micro_batch]])
    documents, positions = documents[kept], positions[kept]
    starts_A = starts_N[documents]
    return Anchors(
        rows_N[documents], starts_A, starts_A + lengths_N[documents], starts_A + positions, num_cut
    )


def supervised_slots(anchors: Anchors, mask_BS: np.ndarray, block_size: int) -> Slots:
    """The slots whose label is a supervised token of the anchor's own document.

    Args:
        mask_BS: uint8 loss mask of the rows, padded with 0.
    """
    # [anchors, slots from 1]
    places = anchors.anchors_A[:, None] + np.arange(1, block_size)
    inside = places < anchors.ends_A[:, None]
    rows = np.broadcast_to(anchors.rows_A[:, None], places.shape)
    blocks_M, slots_M = np.nonzero(inside & (mask_BS[rows, np.where(inside, places, 0)] != 0))
    return Slots(blocks_M, slots_M + 1, anchors.rows_A[blocks_M], places[blocks_M, slots_M])


def padded_rows(documents: Sequence[np.ndarray], row_offsets: np.ndarray, width: int) -> np.ndarray:
    """Documents laid in rows and padded with 0 on the right: [B, width] of the documents' type."""
    rows_BS = np.zeros((len(row_offsets) - 1, width), dtype=documents[0].dtype if documents else np.int32)
    for row in range(len(row_offsets) - 1):
        place = 0
        for document in documents[row_offsets[row] : row_offsets[row + 1]]:
            rows_BS[row, place : place + len(document)] = document
            place += len(document)
    return rows_BS


def refuse_mask_token(documents: Sequence[np.ndarray], mask_token_id: int) -> None:
    """Raise a ValueError if the mask token occurs in the data: the drafter could not tell it from an empty slot."""
    for number, ids in enumerate(documents):
        found = np.flatnonzero(ids == mask_token_id)
        if len(found):
            raise ValueError(
                f"the mask token {mask_token_id} stands in the data (sample {number} of a micro-batch, position {found[0]}); "
                "set drafter.mask_token_id to a token that never occurs"
            )


def _layout(lengths_N: np.ndarray, row_offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each document starts in its row, and which row that is."""
    rows_N = np.repeat(np.arange(len(row_offsets) - 1), np.diff(row_offsets))
    before_N = np.cumsum(lengths_N) - lengths_N
    first_of_row = before_N[np.asarray(row_offsets[:-1])[rows_N]] if len(lengths_N) else before_N
    return before_N - first_of_row, rows_N


def _valid_positions(masks: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    found = [np.flatnonzero((mask[:-1] != 0) & (mask[1:] != 0)) for mask in masks]
    documents = np.repeat(np.arange(len(found)), [len(each) for each in found])
    return documents, np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _allowed(documents: np.ndarray, num_documents: int, rules: AnchorRules) -> np.ndarray:
    valid_N = np.bincount(documents, minlength=num_documents)
    return np.minimum(np.ceil(rules.share * valid_N).astype(np.int64), rules.max_per_sample)


def _smallest_of_each(documents: np.ndarray, keys: np.ndarray, allowed_N: np.ndarray) -> np.ndarray:
    """Indices, increasing, of the candidates with the smallest keys of their document."""
    order = np.lexsort((keys, documents))
    first_N = np.searchsorted(documents, np.arange(len(allowed_N)))
    rank = np.arange(len(order)) - first_N[documents[order]]
    return np.sort(order[rank < allowed_N[documents[order]]])
