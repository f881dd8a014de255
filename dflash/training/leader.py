"""What one drafter does for all: the metrics file, progress on the terminal, checkpoints."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dflash.training.checkpoint import CheckpointWriter
from dflash.training.drafter_loop import DrafterLoop, StepResult, heldout_row, sample_rows
from dflash.training.gradients import CELL_SUMS
from dflash.training.log import METRICS, Log
from dflash.training.stream import Samples, Step


@dataclass
class Leader:
    """Records a run and saves it.

    Attributes:
        identity: what a checkpoint must agree on.
        save_interval_seconds, progress_interval_seconds: by the monotonic clock.
    """

    loop: DrafterLoop
    samples: Samples
    state: Path
    identity: dict[str, Any]
    num_steps: int
    keep_checkpoints: int
    save_interval_seconds: float
    progress_interval_seconds: float
    writer: CheckpointWriter = field(init=False)
    log: Log = field(init=False)

    def __post_init__(self) -> None:
        self.writer = CheckpointWriter(self.state / "checkpoints", self.keep_checkpoints)
        self.log = Log(self.state / "log" / METRICS)
        self._progress = _Progress(self.num_steps)
        self._saved_at = self._shown_at = time.monotonic()
        self._heldout: dict[str, float | None] | None = None

    def after(self, result: StepResult) -> None:
        """Record a step; save and show where it is time to."""
        row = step_row(result, self.samples)
        self._progress.add(row)
        best = False
        if result.counts_NCL is not None:
            self._heldout = heldout_row(result.counts_NCL.sum(axis=0))
            best = self._is_best(self._heldout["acceptance"])
            row["heldout"] = self._heldout
            if result.step.step + 1 == self.num_steps:
                row["heldout_samples"] = sample_rows(self._heldout_keys(result.step), result.counts_NCL)
        self.log.write(row)
        now = time.monotonic()
        if result.counts_NCL is not None or now - self._shown_at >= self.progress_interval_seconds:
            print(self._progress.line(self._heldout), flush=True)
            self._shown_at = now
        due = now - self._saved_at >= self.save_interval_seconds and not self.writer.busy
        if best or due or result.stopped or result.step.step + 1 == self.num_steps:
            self.writer.save(self.loop.snapshot(self.identity), best)
            self._saved_at = now

    def close(self) -> None:
        """Wait until everything is on disk."""
        self.writer.close()

    def _heldout_keys(self, step: Step) -> np.ndarray:
        ids_N = np.concatenate([cell.batch.sample_ids for cell in step.heldout])
        return self.loop.heldout.keys_N[ids_N]

    def _is_best(self, acceptance: float | None) -> bool:
        before = self.loop.position.best_acceptance
        if acceptance is None or not np.isfinite(acceptance) or (before is not None and acceptance <= before):
            return False
        self.loop.position = replace(self.loop.position, best_acceptance=acceptance)
        return True


def step_row(result: StepResult, samples: Samples) -> dict[str, Any]:
    """The metrics of a step and its cells, with the columns of `dflash.training.log`."""
    sums = dict(zip(CELL_SUMS, result.cells_GC.T, strict=True))
    cells = [
        {
            "cell": cell.number,
            "bucket": cell.batch.bucket,
            "width": cell.batch.width,
            "rows": cell.batch.num_rows,
            "useful_tokens": int(samples.lengths_N[cell.batch.sample_ids].sum()),
            "anchors": int(sums["anchors"][place]),
            "loss_sum": float(sums["loss_sum"][place]),
            "weight": float(sums["weight"][place]),
        }
        for place, cell in enumerate(result.step.cells)
    ]
    return {
        "step": result.step.step + 1,
        "epoch": result.step.epoch,
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "learning_rate": result.learning_rate,
        "useful_tokens": sum(cell["useful_tokens"] for cell in cells),
        "padded_tokens": padded_tokens(result.step),
        "samples": sum(len(cell.batch.sample_ids) for cell in result.step.cells),
        "anchors": sum(cell["anchors"] for cell in cells),
        "cut_anchors": int(sums["cut_anchors"].sum()),
        "supervised_slots": int(sums["slots"].sum()),
        "skipped": result.skipped,
        "seconds": result.seconds,
        "cells": cells,
    }


def padded_tokens(step: Step) -> int:
    """Tokens of a step with padding, held-out cells left out."""
    return sum(cell.batch.width * cell.batch.num_rows for cell in step.cells)


class _Progress:
    """The line on the terminal. Rates are over the steps since the line before, the rest from this attempt alone."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._last: dict[str, Any] = {}
        self._seconds = 0.0
        self._steps = 0
        self._window = dict.fromkeys(("useful_tokens", "padded_tokens", "anchors", "seconds"), 0.0)

    def add(self, row: dict[str, Any]) -> None:
        """Count a step."""
        self._last = row
        self._seconds += row["seconds"]
        self._steps += 1
        for name in self._window:
            self._window[name] += row[name]

    def line(self, heldout: dict[str, float | None] | None) -> str:
        """The line, and start to count anew."""
        window, step = self._window, self._last["step"]
        seconds = max(window["seconds"], 1e-9)
        left = (self._num_steps - step) * self._seconds / max(self._steps, 1)
        share = window["useful_tokens"] / max(window["padded_tokens"], 1.0)
        parts = [
            f"step {step}/{self._num_steps}",
            f"loss {self._last['loss']:.3f}",
            f"{window['useful_tokens'] / seconds:,.0f} useful tokens/s",
            f"{100 * share:.0f} % of {window['padded_tokens'] / seconds:,.0f} padded",
            f"{window['anchors'] / seconds:,.0f} anchors/s",
        ]
        if heldout is not None:
            acceptance = heldout["acceptance"]
            parts.append(
                f"held-out acceptance {'-' if acceptance is None else f'{acceptance:.3f}'} (teacher-forced)"
            )
        self._window = dict.fromkeys(window, 0.0)
        return "  ".join([*parts, f"ETA {clock(left)}"])


def clock(seconds: float) -> str:
    """A duration as 1:02:03 or 2:03."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
