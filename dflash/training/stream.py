"""What every rank does in which order: the cells of every step, who computes their features and who trains on them.

A pure function of the plan, the costs and the topology, so every rank works out the whole order by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dflash.batching.batch import Batch
from dflash.batching.cost import Limits, aligned, expected_anchors
from dflash.batching.dealing import deal_drafters, deal_targets
from dflash.batching.keyed import hashes
from dflash.transfer.roles import Topology

# Targets are dealt cells in runs of so many steps; a run begins as if all targets were free.
_RUN_STEPS = 16
# Share of a padded token in a drafter's cost, an anchor being 1.
_TOKEN_SHARE = 0.1


class Steps(Protocol):
    """What a plan answers."""

    num_cells: int

    def num_steps(self, epoch: int) -> int:
        """Optimizer steps of an epoch."""

    def batch(self, epoch: int, step: int, cell: int) -> Batch:
        """One micro-batch."""


class Samples(Protocol):
    """What the token shards answer, by sample id."""

    lengths_N: np.ndarray
    supervised_N: np.ndarray
    keys_N: np.ndarray

    def sample(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids int32 [length] and loss mask uint8 [length]."""


@dataclass(frozen=True)
class Costs:
    """Predicted costs of a cell. limits: of the plan; share, max_per_sample: of anchors."""

    limits: Limits
    share: float
    max_per_sample: int

    def target(self, batch: Batch) -> float:
        """Of the target's forward pass, in padded tokens."""
        return float(self.limits.cost(np.array([batch.width]))[0]) * batch.num_rows

    def drafter(self, batch: Batch, supervised_N: np.ndarray) -> float:
        """Of the drafter's work, in anchors."""
        anchors = expected_anchors(supervised_N[batch.sample_ids], self.share, self.max_per_sample)
        return float(anchors.sum()) + _TOKEN_SHARE * batch.width * batch.num_rows


@dataclass(frozen=True)
class Cell:
    """A micro-batch and who works on it.

    Attributes:
        number: its place in the step. heldout: for evaluation, not for training.
    """

    step: int
    epoch: int
    number: int
    batch: Batch
    heldout: bool
    target: int
    drafter: int


@dataclass(frozen=True)
class Step:
    """An optimizer step: its cells, then the held-out cells after it (often none). step counts from 0 over all epochs."""

    step: int
    epoch: int
    cells: list[Cell]
    heldout: list[Cell]

    @property
    def all_cells(self) -> list[Cell]:
        """In the order of work; empty ones left out."""
        return [cell for cell in (*self.cells, *self.heldout) if cell.batch.num_rows]


def total_steps(plan: Steps, num_steps: int | None, num_epochs: int) -> int:
    """Optimizer steps of the run."""
    return num_steps if num_steps is not None else sum(plan.num_steps(epoch) for epoch in range(num_epochs))


class Stream:
    """All steps of a run."""

    def __init__(
        self,
        plan: Steps,
        samples: Samples,
        heldout: tuple[Samples, Sequence[Batch]],
        costs: Costs,
        topology: Topology,
        num_steps: int,
        heldout_interval_steps: int,
    ) -> None:
        """heldout: the held-out samples and their batches, evaluated every interval and at the end."""
        self._plan = plan
        self._supervised_N = samples.supervised_N
        self._heldout_supervised_N, self._heldout = heldout[0].supervised_N, list(heldout[1])
        self._costs = costs
        self._topology = topology
        self.num_steps = num_steps
        self._interval = heldout_interval_steps

    def evaluates_after(self, step: int) -> bool:
        """Whether held-out cells follow a step."""
        return bool(self._heldout) and ((step + 1) % self._interval == 0 or step + 1 == self.num_steps)

    def steps(self, first: int) -> Iterator[Step]:
        """Every step from `first` on."""
        places = self._places(first)
        for begin in range(first, self.num_steps, _RUN_STEPS):
            count = min(_RUN_STEPS, self.num_steps - begin)
            yield from self._run(begin, [next(places) for _ in range(count)])

    def _places(self, first: int) -> Iterator[tuple[int, int]]:
        """Epoch and step inside it, from a step of the run on."""
        epoch, inside = 0, first
        while inside >= (count := self._plan.num_steps(epoch)):
            epoch, inside = epoch + 1, inside - count
        while True:
            yield from ((epoch, step) for step in range(inside, self._plan.num_steps(epoch)))
            epoch, inside = epoch + 1, 0

    def _run(self, begin: int, places: list[tuple[int, int]]) -> Iterator[Step]:
        num_cells = self._plan.num_cells
        work: list[list[Batch]] = []
        drafters: list[np.ndarray] = []
        for step, (epoch, inside) in enumerate(places, begin):
            batches = [self._plan.batch(epoch, inside, cell) for cell in range(num_cells)]
            drafters.append(self._drafters(batches, self._supervised_N))
            if self.evaluates_after(step):
                batches += self._heldout
                drafters.append(self._drafters(self._heldout, self._heldout_supervised_N))
            work.append(batches)
        drafters_C = np.concatenate(drafters)
        dealt = zip(
            self._targets([batch for batches in work for batch in batches], drafters_C),
            drafters_C.tolist(),
            strict=True,
        )
        for step, ((epoch, _), batches) in enumerate(zip(places, work, strict=True), begin):
            cells = [
                Cell(
                    step,
                    epoch,
                    number if number < num_cells else number - num_cells,
                    batch,
                    number >= num_cells,
                    *next(dealt),
                )
                for number, batch in enumerate(batches)
            ]
            yield Step(step, epoch, cells[:num_cells], cells[num_cells:])

    def _drafters(self, batches: Sequence[Batch], supervised_N: np.ndarray) -> np.ndarray:
        costs = np.array([self._costs.drafter(batch, supervised_N) for batch in batches])
        return deal_drafters(costs, self._topology.num_drafters)

    def _targets(self, batches: Sequence[Batch], drafters_C: np.ndarray) -> list[int]:
        costs_C = np.array([self._costs.target(batch) for batch in batches])
        return [int(target) for target in targets_of_cells(costs_C, drafters_C, self._topology)]


def targets_of_cells(costs_C: np.ndarray, drafters_C: np.ndarray, topology: Topology) -> np.ndarray:
    """Target of every cell, int64: group by group, for a drafter is served by the targets of its group alone.

    Args:
        costs_C: of the target's forward, in plan order. drafters_C: who trains on the cell.
    """
    if topology.colocated:
        return drafters_C
    groups_C = np.array([topology.group_of_drafter(drafter) for drafter in drafters_C.tolist()], np.int64)
    dealt_C = np.empty(len(costs_C), np.int64)
    for group in range(topology.num_groups):
        mine = groups_C == group
        targets = np.array(topology.targets_of(group))
        dealt_C[mine] = targets[deal_targets(costs_C[mine], len(targets))]
    return dealt_C


def heldout_batches(samples: Samples, num_samples: int, budget_tokens: int) -> list[Batch]:
    """The same samples every time, those with the smallest hashed keys, in micro-batches of similar lengths."""
    keys_N = hashes(0, samples.keys_N)
    usable = np.flatnonzero(samples.supervised_N > 0)
    chosen = usable[np.argsort(keys_N[usable], kind="stable")[:num_samples]]
    chosen = chosen[np.argsort(samples.lengths_N[chosen], kind="stable")]
    widths = aligned(samples.lengths_N[chosen], 8)
    batches: list[Batch] = []
    first = 0
    for place in range(1, len(chosen) + 1):
        if place < len(chosen) and (place + 1 - first) * int(widths[place]) <= budget_tokens:
            continue
        batches.append(
            Batch(
                chosen[first:place].astype(np.int64), np.arange(place - first + 1), int(widths[place - 1]), 0
            )
        )
        first = place
    return batches


def largest_packet(
    plan_widths: Sequence[int], max_rows: Sequence[int], heldout: Sequence[Batch]
) -> tuple[int, int]:
    """Rows and width of the micro-batch with the most padded tokens."""
    shapes = [*zip(max_rows, plan_widths, strict=True), *((batch.num_rows, batch.width) for batch in heldout)]
    return max(shapes, key=lambda shape: (shape[0] * shape[1], shape), default=(0, 0))
