"""The run's log: append-only lines of JSON that survive crashes, and the tables made of them at the end.

`metrics.jsonl` (the leader's: steps, cells, held-out evaluations), `ranks-N.jsonl` (what each rank measured) and
`samples-N.jsonl` (which samples a drafter trained on). Every line has `step`, the number of steps done. On resume, lines
of steps after the checkpoint are cut off, for those steps are done again.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

METRICS = "metrics.jsonl"
STEP_COLUMNS = {
    "step": pl.Int64,
    "epoch": pl.Int64,
    "loss": pl.Float64,
    "grad_norm": pl.Float64,
    "learning_rate": pl.Float64,
    "useful_tokens": pl.Int64,
    "padded_tokens": pl.Int64,
    "samples": pl.Int64,
    "anchors": pl.Int64,
    "cut_anchors": pl.Int64,
    "supervised_slots": pl.Int64,
    "skipped": pl.Boolean,
}
"""metrics.parquet; `seconds`, the duration of a step, is measured and stands in measured/seconds.parquet."""
CELL_COLUMNS = {
    "step": pl.Int64,
    "cell": pl.Int64,
    "bucket": pl.Int64,
    "width": pl.Int64,
    "rows": pl.Int64,
    "useful_tokens": pl.Int64,
    "anchors": pl.Int64,
    "loss_sum": pl.Float64,
    "weight": pl.Float64,
}
"""cells.parquet."""
SAMPLE_COLUMNS = {
    "sample": pl.String,
    "loss_sum": pl.Float64,
    "slots": pl.Int64,
    "acceptance": pl.Float64,
}
"""heldout_samples.parquet, of the evaluation after the last step: hash of the sample's content in hexadecimal, sum of the
unweighted losses in nats over its supervised slots, their number, teacher-forced acceptance length (null without a block)."""
RANK_COLUMNS = {
    "step": pl.Int64,
    "rank": pl.Int64,
    "role": pl.String,
    "busy_seconds": pl.Float64,
    "blocked_empty_seconds": pl.Float64,
    "blocked_full_seconds": pl.Float64,
    "queued_bytes": pl.Float64,
    "energy_joules": pl.Float64,
    "memory_bytes": pl.Int64,
}
"""measured/ranks.parquet: sums over one step; energy is null where it is unknown."""


class Log:
    """A file that lines are appended to. It is open only while a line is written, so nothing is ever half out."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def write(self, row: dict[str, Any]) -> None:
        """Append a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log; a last line that a crash tore is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def cut_logs(folder: Path, step: int) -> None:
    """Cut off, in every log of a folder, the lines of steps after `step`."""
    for path in folder.glob("*.jsonl"):
        kept = [json.dumps(row) + "\n" for row in read_log(path) if row["step"] <= step]
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text("".join(kept), encoding="utf-8")
        os.replace(temporary, path)


def write_tables(logs: Path, folder: Path, block_size: int) -> None:
    """Make the tables of a finished run.

    Args:
        logs: folder of the logs.
        folder: gets metrics, cells, heldout and heldout_samples .parquet, and measured/seconds and measured/ranks .parquet.
        block_size: L, for the columns of the held-out accuracy.
    """
    rows = list(read_log(logs / METRICS))
    steps = [row for row in rows if "loss" in row and "cells" in row]
    cells = [{"step": row["step"], **cell} for row in steps for cell in row["cells"]]
    heldout = [row["heldout"] | {"step": row["step"]} for row in rows if "heldout" in row]
    samples: list[dict[str, Any]] = next(
        (row["heldout_samples"] for row in reversed(rows) if "heldout_samples" in row), []
    )
    ranks = [row for path in sorted(logs.glob("ranks-*.jsonl")) for row in read_log(path)]
    heldout_columns = {"step": pl.Int64, "loss": pl.Float64, "acceptance": pl.Float64}
    heldout_columns |= {f"acc_slot_{slot}": pl.Float64 for slot in range(1, block_size)}
    measured = folder / "measured"
    measured.mkdir(exist_ok=True)
    _write(folder / "metrics.parquet", steps, STEP_COLUMNS)
    _write(folder / "cells.parquet", cells, CELL_COLUMNS)
    _write(folder / "heldout.parquet", heldout, heldout_columns)
    _write(folder / "heldout_samples.parquet", samples, SAMPLE_COLUMNS)
    _write(measured / "seconds.parquet", steps, {"step": pl.Int64, "seconds": pl.Float64})
    _write(measured / "ranks.parquet", ranks, RANK_COLUMNS)


def _write(path: Path, rows: list[dict[str, Any]], columns: dict[str, Any]) -> None:
    pl.DataFrame([{name: row[name] for name in columns} for row in rows], schema=columns).write_parquet(path)


def consumed_samples(logs: Path) -> Iterator[tuple[int, int]]:
    """Epoch and id of every sample that was trained on, in no certain order."""
    for path in sorted(logs.glob("samples-*.jsonl")):
        for row in read_log(path):
            yield from ((row["epoch"], sample) for sample in row["samples"])
