"""The step loop of a drafter: micro-batches, one sum over all drafters, one update; held-out evaluation in between."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dflash.model.objective import COUNTED, acceptance
from dflash.training.checkpoint import Checkpoint, Position
from dflash.training.features import FeatureSource
from dflash.training.gradients import CELL_SUMS, StepBuffer, sum_in_order
from dflash.training.log import Log
from dflash.training.meters import Meter
from dflash.training.micro_batch import Learner
from dflash.training.optimizer import Optimizer
from dflash.training.schedule import Schedule
from dflash.training.stopping import Stopping
from dflash.training.stream import Cell, Samples, Step


@dataclass(frozen=True)
class StepResult:
    """What all drafters know after a step.

    Attributes:
        cells_GC: float64 sums of every cell, columns `CELL_SUMS`.
        counts_NCL: counts of every held-out sample, in the order of the held-out cells, by `dflash.model.objective.COUNTED`
            and slot, float64; None if no evaluation followed this step.
        stopped: all drafters stop here.
    """

    step: Step
    loss: float
    grad_norm: float
    learning_rate: float
    cells_GC: np.ndarray
    skipped: bool
    stopped: bool
    counts_NCL: np.ndarray | None
    seconds: float


@dataclass
class DrafterLoop:
    """A drafter in training.

    Attributes:
        drafter: its number. group: all drafters, None if it is the only one.
        samples, heldout: training and validation samples.
        splits: see `Learner.gradients`.
        max_bad_steps: skipped steps in a row that stop the run.
    """

    drafter: int
    num_drafters: int
    num_cells: int
    learner: Learner
    optimizer: Optimizer
    schedule: Schedule
    source: FeatureSource
    samples: Samples
    heldout: Samples
    group: dist.ProcessGroup | None
    timeout: timedelta
    meter: Meter
    stopping: Stopping
    consumed: Log
    splits: bool
    max_bad_steps: int
    position: Position
    buffer: StepBuffer = field(init=False)

    def __post_init__(self) -> None:
        parameters = list(self.learner.drafter.parameters())
        self.buffer = StepBuffer(parameters, self.num_cells, self.num_drafters)

    def run(self, steps: Iterator[Step]) -> Iterator[StepResult]:
        """Train; gives the result of every step before the next one starts.

        Raises:
            ValueError: too many steps in a row were not finite, or memory ran out.
        """
        began = time.perf_counter()
        for step in steps:
            bad = self._train(step)
            with self.meter.during("blocked_empty", f"the other drafters at the end of step {step.step + 1}"):
                sum_in_order(self.buffer.flat, self.group, self.timeout)
            with self.meter.during("busy", f"the update of step {step.step + 1}"):
                loss, grad_norm, rate, skipped, stopped, cells_GC = self._update(step)
            self._judge(skipped, bad)
            counts_NCL = self._evaluate(step.heldout) if step.heldout else None
            now = time.perf_counter()
            yield StepResult(step, loss, grad_norm, rate, cells_GC, skipped, stopped, counts_NCL, now - began)
            began = now
            if stopped:
                return

    def snapshot(self, identity: dict[str, object]) -> Checkpoint:
        """A copy on the CPU of everything that the next step depends on."""
        weights = {
            name: each.detach().cpu().clone() for name, each in self.learner.drafter.named_parameters()
        }
        state = {name: each.detach().cpu().clone() for name, each in self.optimizer.state().items()}
        return Checkpoint(self.position, identity, weights, state)

    def _mine(self, cells: list[Cell]) -> Iterator[Cell]:
        return (cell for cell in cells if cell.drafter == self.drafter and cell.batch.num_rows)

    def _train(self, step: Step) -> list[str]:
        """Fill the buffer with this drafter's share of a step; gives what was not finite."""
        self.buffer.flat.zero_()
        bad: list[str] = []
        for cell in self._mine(step.cells):
            with self.meter.during("busy", f"rows of step {step.step + 1}, cell {cell.number}"):
                rows = self.learner.rows(cell.batch, self.samples, cell.epoch)
            features_BSF, final_BSH = self.source.take(rows)
            with self.meter.during("busy", f"training on step {step.step + 1}, cell {cell.number}"):
                assert rows.anchors is not None and rows.slots is not None
                if len(rows.anchors.rows_A):
                    learned = self.learner.gradients(rows, features_BSF, final_BSH, self.splits)
                    self.buffer.add(learned.gradients)
                    sums = self.buffer.cells_GC[cell.number]
                    sums[0] = learned.loss_sum
                    counted = (
                        learned.static_weight,
                        len(rows.anchors.rows_A),
                        len(rows.slots.rows_M),
                        rows.anchors.num_cut,
                    )
                    sums[1:] = torch.tensor(counted, dtype=torch.float32)
                    bad += self._not_finite(cell, features_BSF)
                self.source.release()
            self.consumed.write(
                {
                    "step": step.step + 1,
                    "epoch": step.epoch,
                    "cell": cell.number,
                    "samples": cell.batch.sample_ids.tolist(),
                }
            )
        if bad:
            self.buffer.raise_flag("bad")
        if self.stopping.requested():
            self.buffer.raise_flag("stop")
        return bad

    def _not_finite(self, cell: Cell, features_BSF: torch.Tensor) -> list[str]:
        if bool(torch.isfinite(self.buffer.cells_GC[cell.number, 0])):
            return []
        what = "loss" if bool(torch.isfinite(features_BSF).all()) else "features of the target"
        return [
            f"{what} not finite in step {cell.step + 1}, cell {cell.number}, samples {cell.batch.sample_ids.tolist()}"
        ]

    def _update(self, step: Step) -> tuple[float, float, float, bool, bool, np.ndarray]:
        """Divide by the step's weight, clip, and update; every drafter decides alike, from the same bits."""
        cells_GC, flags, norm = self.buffer.read()
        cells = cells_GC.double().numpy()
        weight = float(cells[:, CELL_SUMS.index("weight")].sum())
        loss = float(cells[:, CELL_SUMS.index("loss_sum")].sum())
        rate = self.schedule.at(step.step)
        skipped = flags["bad"] or not np.isfinite(norm)
        if not skipped and weight > 0.0:
            self.buffer.weights_P.mul_(1.0 / weight)
            self.optimizer.step(rate, norm / weight)
        self.position = replace(
            self.position,
            step=step.step + 1,
            bad_in_a_row=self.position.bad_in_a_row + 1 if skipped else 0,
            num_bad=self.position.num_bad + skipped,
        )
        share = 1.0 / weight if weight > 0.0 else float("nan")
        return loss * share, norm * share, rate, skipped, flags["stop"], cells

    def _judge(self, skipped: bool, bad: list[str]) -> None:
        for line in bad:
            print(f"warning: {line}; the whole step is skipped on all drafters", flush=True)
        if skipped and self.position.bad_in_a_row >= self.max_bad_steps:
            named = "; ".join(bad) or "the gradient, or another drafter's loss"
            raise ValueError(
                f"{self.position.bad_in_a_row} steps in a row were not finite (training.max_bad_steps), last: {named}; look at these samples, "
                "lower training.learning_rate, or set target_loading.dtype: float32"
            )

    def _evaluate(self, cells: list[Cell]) -> np.ndarray:
        """Counts [N, len(COUNTED), L] of the held-out samples: each from the drafter it was dealt to, so the sum over the
        drafters changes no bit.
        """
        shape = (
            sum(cell.batch.num_rows for cell in cells),
            len(COUNTED),
            self.learner.drafter.config.block_size,
        )
        size = int(np.prod(shape))
        device = self.learner.embedding_VH.device
        flat = torch.zeros(
            -(-size // self.num_drafters) * self.num_drafters, dtype=torch.float64, device=device
        )
        counts_NCL = flat[:size].view(shape)
        first_rows = np.cumsum([0, *(cell.batch.num_rows for cell in cells)]).tolist()
        for cell in self._mine(cells):
            rows = self.learner.rows(cell.batch, self.heldout, epoch=0)
            features_BSF, final_BSH = self.source.take(rows)
            with (
                self.meter.during("busy", f"held-out cell {cell.number} after step {cell.step + 1}"),
                torch.no_grad(),
            ):
                assert rows.anchors is not None
                if len(rows.anchors.rows_A):
                    counts_CAL = self.learner.counts(rows, features_BSF, final_BSH, self.splits)
                    bounds = np.searchsorted(rows.anchors.rows_A, np.arange(cell.batch.num_rows + 1))
                    for row, (begin, end) in enumerate(pairwise(bounds.tolist())):
                        counts_NCL[first_rows[cell.number] + row] = counts_CAL[:, begin:end].sum(dim=1)
                self.source.release()
        with self.meter.during("blocked_empty", "the other drafters after a held-out evaluation"):
            sum_in_order(flat, self.group, self.timeout)
        return counts_NCL.cpu().numpy()


def heldout_row(counts: np.ndarray) -> dict[str, float | None]:
    """Summed counts as a row of heldout.parquet; accuracies of slots that never were supervised are None."""
    named = dict(zip(COUNTED, counts, strict=True))
    row: dict[str, float | None] = {
        "loss": float(named["loss"].sum() / max(named["supervised"].sum(), 1.0)),
        "acceptance": acceptance(counts),
    }
    for slot in range(1, counts.shape[1]):
        supervised = float(named["supervised"][slot])
        row[f"acc_slot_{slot}"] = float(named["correct"][slot]) / supervised if supervised else None
    return row


def sample_rows(keys_N: np.ndarray, counts_NCL: np.ndarray) -> list[dict[str, Any]]:
    """Rows of heldout_samples.parquet, in the order of the samples' keys.

    Args:
        keys_N: hash of each sample's content, uint64.
        counts_NCL: see `StepResult`.
    """
    totals_NC = counts_NCL.sum(axis=2)
    rows = []
    for place in np.argsort(keys_N, kind="stable"):
        forced = acceptance(counts_NCL[place])
        rows.append(
            {
                "sample": f"{int(keys_N[place]):016x}",
                "loss_sum": float(totals_NC[place, COUNTED.index("loss")]),
                "slots": int(totals_NC[place, COUNTED.index("supervised")]),
                "acceptance": forced if np.isfinite(forced) else None,
            }
        )
    return rows
