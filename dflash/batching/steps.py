"""From an epoch's batches in order to optimizer steps: whole steps are permuted, the last step is filled.

Low-discrepancy interleaving alone leaves a periodic comb in the steps' mean length; permuting whole steps afterwards
keeps the low variance inside a step and removes the comb.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from dflash.batching.batch import Batch, EpochIndex, Policy, empty_batch
from dflash.batching.keyed import key_of, permuted

_STEPS, _CELLS, _BATCHES = 11, 12, 13


@dataclass(frozen=True)
class Mixing:
    """How an epoch's order of batches becomes its order of training.

    Attributes:
        seed: of the permutations.
        batches: permute all batches first (policies whose order has no low discrepancy to keep).
        steps: permute whole steps and the cells inside each; off only for `sorted`.
    """

    seed: int
    batches: bool
    steps: bool

    def slots(self, epoch: int, num_batches: int, num_cells: int, places: np.ndarray) -> np.ndarray:
        """Slots of the policy's order at places of the training order, int64; the short last step stays last."""
        full = num_batches // num_cells
        slots = np.array(places, dtype=np.int64)
        if self.steps and full:
            inside = slots < full * num_cells
            step, cell = np.divmod(slots[inside], num_cells)
            source = permuted(key_of(self.seed, epoch, _STEPS), full, step)
            # One rotation and reflection a step would do for order; cells only choose who works, never what is summed.
            turned = (cell + source) % num_cells
            slots[inside] = source * num_cells + permuted(key_of(self.seed, epoch, _CELLS), num_cells, turned)
        if self.batches and num_batches:
            slots = permuted(key_of(self.seed, epoch, _BATCHES), num_batches, slots)
        return slots


def last_step(batches: list[Batch], num_cells: int) -> list[Batch]:
    """Fill a short step: split the largest batches in two until every cell has rows, or only single rows are left.

    Cells that stay without rows are empty and weigh nothing; the number of cells never changes.
    """
    heap = [(-batch.num_rows * batch.width, number, batch) for number, batch in enumerate(batches)]
    heapq.heapify(heap)
    done: list[tuple[int, Batch]] = []
    fresh = len(batches)
    while heap and len(heap) + len(done) < num_cells:
        _, number, batch = heapq.heappop(heap)
        if batch.num_rows < 2:
            done.append((number, batch))
            continue
        half = (batch.num_rows + 1) // 2
        parts = (batch.part(0, half), batch.part(half, batch.num_rows))
        for key, part in zip((number, fresh), parts, strict=True):
            heapq.heappush(heap, (-part.num_rows * part.width, key, part))
        fresh += 1
    filled = sorted(done + [(number, batch) for _, number, batch in heap], key=lambda pair: pair[0])
    return [batch for _, batch in filled] + [empty_batch()] * (num_cells - len(filled))


def training_order(policy: Policy, mixing: Mixing, num_cells: int, epoch: int) -> EpochIndex:
    """All cells of an epoch in training order, the last step filled; cells that stay empty have 0 rows."""
    index = policy.index(epoch)
    total = len(index.rows)
    slots = mixing.slots(epoch, total, num_cells, np.arange(total))
    whole = total // num_cells * num_cells
    tail = (
        last_step([index.batch(slot) for slot in slots[whole:].tolist()], num_cells) if total > whole else []
    )
    sizes = np.diff(index.offsets)[slots[:whole]]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    source = np.arange(int(offsets[-1])) + np.repeat(index.offsets[slots[:whole]] - offsets[:-1], sizes)
    tail_ends = offsets[-1] + np.cumsum([len(batch.sample_ids) for batch in tail], dtype=np.int64)
    return EpochIndex(
        np.concatenate([index.sample_ids_N[source], *[batch.sample_ids for batch in tail]]),
        np.concatenate([offsets, tail_ends]).astype(np.int64),
        _joined(index.widths[slots[:whole]], [batch.width for batch in tail]),
        _joined(index.buckets[slots[:whole]], [batch.bucket for batch in tail]),
        _joined(index.rows[slots[:whole]], [batch.num_rows for batch in tail]),
    )


def _joined(head: np.ndarray, tail: list[int]) -> np.ndarray:
    return np.concatenate([head, np.array(tail, np.int64)]).astype(np.int64)
