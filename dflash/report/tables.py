"""Reading the tables that other rooms write, with a check that they hold the columns a page needs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.report.loss_composition import History

METRIC_COLUMNS = (
    "step",
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "useful_tokens",
    "padded_tokens",
    "anchors",
    "supervised_slots",
    "cut_anchors",
    "skipped",
)
CELL_COLUMNS = ("step", "width", "rows", "useful_tokens", "loss_sum", "weight")
RANK_COLUMNS = (
    "step",
    "rank",
    "role",
    "busy_seconds",
    "blocked_empty_seconds",
    "blocked_full_seconds",
    "queued_bytes",
    "energy_joules",
    "memory_bytes",
)
HELDOUT_COLUMNS = ("step", "loss", "acceptance")
HELDOUT_SAMPLE_COLUMNS = ("sample", "loss_sum", "slots")


def read_table(path: Path, columns: Iterable[str]) -> pl.DataFrame:
    """A Parquet table.

    Raises:
        ValueError: it is missing, or lacks a column.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing; run the stage {path.parent.name} again")
    table = pl.read_parquet(path)
    lacking = [name for name in columns if name not in table.columns]
    if lacking:
        raise ValueError(f"{path} has no column {lacking[0]!r}; it has {', '.join(table.columns)}")
    return table


def read_record(path: Path, keys: Iterable[str] = ()) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: it is missing, is no object, or lacks a key.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing; run the stage {path.parent.name} again")
    record = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise ValueError(f"{path} holds a {type(record).__name__}, not an object")
    lacking = [key for key in keys if key not in record]
    if lacking:
        raise ValueError(f"{path} has no key {lacking[0]!r}; it has {', '.join(record) or 'nothing'}")
    return record


def numbers(table: pl.DataFrame, column: str) -> NDArray[np.float64]:
    """A column as floats, NaN where it is null."""
    return table[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()


@dataclass(frozen=True)
class RunRecord:
    """What a training recorded."""

    metrics: pl.DataFrame
    cells: pl.DataFrame
    ranks: pl.DataFrame
    heldout: pl.DataFrame
    machines: Sequence[Mapping[str, Any]]
    """Of each rank: what `dflash.training.devices.machine` says."""
    num_topologies: int
    """Ways in which the run was spread over ranks, one after another."""

    @property
    def useful_tokens_T(self) -> NDArray[np.float64]:
        """Useful tokens up to and with each step."""
        return np.cumsum(numbers(self.metrics, "useful_tokens"))

    def tokens_at(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Useful tokens up to and with given steps; 0 before the first."""
        place = np.searchsorted(self.metrics["step"].to_numpy(), steps, side="right")
        return np.concatenate([[0.0], self.useful_tokens_T])[place]

    @property
    def slots(self) -> list[str]:
        """The columns of the held-out accuracy by slot, in order."""
        found = [name for name in self.heldout.columns if name.startswith("acc_slot_")]
        return sorted(found, key=lambda name: int(name.removeprefix("acc_slot_")))

    def history(self, widths: Sequence[int], period_steps: int | None) -> History:
        """What the verdict judges.

        Args:
            widths: the buckets' upper bounds in tokens; cells of every policy are grouped by them.
            period_steps: steps of an epoch.
        """
        cells = self.cells.filter(pl.col("weight") > 0)
        last = self.heldout["acceptance"].drop_nulls()
        return History(
            step_T=self.metrics["step"].to_numpy(),
            loss_T=numbers(self.metrics, "loss"),
            gradient_norm_T=numbers(self.metrics, "grad_norm"),
            skipped_T=self.metrics["skipped"].to_numpy(),
            cell_step_C=cells["step"].to_numpy(),
            cell_bucket_C=bucket_of(cells, widths),
            cell_length_C=numbers(cells, "useful_tokens") / np.maximum(1.0, numbers(cells, "rows")),
            cell_loss_C=numbers(cells, "loss_sum") / numbers(cells, "weight"),
            cell_weight_C=numbers(cells, "weight"),
            period_steps=period_steps,
            acceptance=float(last[-1]) if len(last) else None,
        )


def bucket_of(cells: pl.DataFrame, widths: Sequence[int]) -> NDArray[np.int64]:
    """The bucket that each cell's width falls into; its mean length, where all cells are of one width (packed rows)."""
    bounds = np.array(list(widths) or [1], dtype=np.float64)
    size = numbers(cells, "width")
    if len(bounds) > 1 and len(np.unique(size)) == 1:
        size = numbers(cells, "useful_tokens") / np.maximum(1.0, numbers(cells, "rows"))
    return np.minimum(np.searchsorted(bounds, size), len(bounds) - 1)


def read_run(folder: Path) -> RunRecord:
    """The tables of a training; `seconds` and `ranks` are measured and lie apart."""
    metrics = read_table(folder / "metrics.parquet", METRIC_COLUMNS)
    seconds = read_table(folder / "measured" / "seconds.parquet", ("step", "seconds"))
    machine = read_record(folder / "measured" / "run.json", ("ranks", "topologies"))
    return RunRecord(
        metrics=metrics.join(seconds.select("step", "seconds"), on="step", how="left", maintain_order="left"),
        cells=read_table(folder / "cells.parquet", CELL_COLUMNS),
        ranks=read_table(folder / "measured" / "ranks.parquet", RANK_COLUMNS),
        heldout=read_table(folder / "heldout.parquet", HELDOUT_COLUMNS),
        machines=machine["ranks"],
        num_topologies=len(machine["topologies"]),
    )
