"""The live view: a training in progress on the terminal, from the log that it appends to. It reads, and disturbs nothing."""

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dflash.report.loss_composition import History
from dflash.report.quantity import compact, duration, percent
from dflash.report.verdict import judge
from dflash.store.canonical import read_json
from dflash.store.lease import holder_of

LOG = Path("state") / "log"
BARS = " ▁▂▃▄▅▆▇█"
RECENT_STEPS = 50


@dataclass
class Follower:
    """Reads a growing file of JSON lines, each line once. A file that was cut (a resumed run) is read anew."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0
    _identity: tuple[int, int] = (0, 0)

    def read(self) -> list[dict[str, Any]]:
        """All rows so far; a last line without its end is left for the next time."""
        stat = self.path.stat()
        if (stat.st_dev, stat.st_ino) != self._identity or stat.st_size < self._offset:
            self.rows, self._offset, self._identity = [], 0, (stat.st_dev, stat.st_ino)
        with self.path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.rows += [json.loads(line) for line in whole.splitlines()]
        return self.rows


@dataclass
class Training:
    """A training that somebody works on."""

    title: str
    folder: Path
    num_steps: int | None
    metrics: Follower
    ranks: list[Follower]


def running(store: Path) -> Iterator[Training]:
    """The trainings in progress, by their locks."""
    for folder in sorted((store / "fit").glob("*")):
        holder = holder_of(folder / "lock")
        log = folder / LOG / "metrics.jsonl"
        if holder is None or not log.exists():
            continue
        steps = (read_json(folder / "components.json") or {}).get("settings.training.num_steps")
        ranks = [Follower(path) for path in sorted(log.parent.glob("ranks-*.jsonl"))]
        yield Training(str(holder["about"]), folder, steps, Follower(log), ranks)


def watch(store: Path, every_seconds: float, *, once: bool) -> None:
    """Show the trainings in progress until none is left.

    Args:
        store: the store's folder.
        every_seconds: between two looks.
        once: look once.

    Raises:
        ValueError: nothing is being trained.
    """
    trainings = {each.folder: each for each in running(store)}
    if not trainings:
        raise ValueError(f"nothing is being trained in {store.absolute()}; start it with: snakemake train")
    while trainings:
        text = "\n\n".join(view(each) for each in trainings.values())
        clear = "\033[H\033[J" if sys.stdout.isatty() and not once else ""
        print(clear + text, flush=True)
        if once:
            return
        time.sleep(every_seconds)
        alive = {each.folder: each for each in running(store)}
        trainings = {folder: trainings.get(folder, each) for folder, each in alive.items()}
    print("finished")


def view(training: Training) -> str:
    """What a training looks like now, as lines."""
    rows = training.metrics.read()
    if not rows:
        return f"{training.title}: no step yet"
    last, recent = rows[-1], rows[-RECENT_STEPS:]
    seconds = sum(row["seconds"] for row in recent)
    useful, padded = (sum(row[name] for row in recent) for name in ("useful_tokens", "padded_tokens"))
    lines = [
        f"{training.title}  {_progress(last['step'], training.num_steps, seconds / len(recent))}",
        f"  loss     {_number(last['loss'])}  {sparkline([_float(row['loss']) for row in rows])}",
        f"  speed    {compact(useful / max(seconds, 1e-9))} useful, {compact(padded / max(seconds, 1e-9))} padded tokens/s, "
        f"padding efficiency {percent(useful / max(1, padded))}",
    ]
    heldout = [row["heldout"] for row in rows if "heldout" in row]
    if heldout:
        best = max(_float(each["acceptance"]) for each in heldout)
        lines.append(
            f"  held-out loss {_number(heldout[-1]['loss'])}, acceptance length {_number(heldout[-1]['acceptance'])} (best {best:.2f})"
        )
    lines += [f"  {line}" for line in map(_rank_line, training.ranks) if line]
    verdict = judge(history(rows))
    lines.append(f"  verdict  {verdict.level} ({verdict.cause}). {verdict.reason}")
    return "\n".join(lines)


def history(rows: Sequence[dict[str, Any]]) -> History:
    """What the verdict judges, from the log's lines."""
    cells = [(row["step"], cell) for row in rows for cell in row["cells"] if cell["weight"] > 0]
    heldout = [row["heldout"]["acceptance"] for row in rows if "heldout" in row]
    weight = np.array([cell["weight"] for _, cell in cells], dtype=np.float64)
    return History(
        step_T=np.array([row["step"] for row in rows], dtype=np.int64),
        loss_T=np.array([_float(row["loss"]) for row in rows]),
        gradient_norm_T=np.array([_float(row["grad_norm"]) for row in rows]),
        skipped_T=np.array([row["skipped"] for row in rows], dtype=bool),
        cell_step_C=np.array([step for step, _ in cells], dtype=np.int64),
        cell_bucket_C=np.array([cell["bucket"] for _, cell in cells], dtype=np.int64),
        cell_length_C=np.array(
            [cell["useful_tokens"] / max(1, cell["rows"]) for _, cell in cells], dtype=np.float64
        ),
        cell_loss_C=np.array([_float(cell["loss_sum"]) for _, cell in cells]) / weight,
        cell_weight_C=weight,
        acceptance=heldout[-1] if heldout else None,
    )


def sparkline(values: Sequence[float], width: int = 50) -> str:
    """A series as a line of bars, each the mean of its share of the series."""
    parts = np.array_split(np.asarray(values, dtype=np.float64), max(1, min(width, len(values))))
    means = [
        float(np.mean(part[np.isfinite(part)])) if np.isfinite(part).any() else math.nan for part in parts
    ]
    known = [mean for mean in means if not math.isnan(mean)]
    if not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    return "".join("x" if math.isnan(mean) else BARS[1 + round((mean - low) / span * 7)] for mean in means)


def _progress(step: int, total: int | None, seconds_per_step: float) -> str:
    if total is None:
        return f"step {step:,}"
    filled = round(30 * step / total)
    left = duration((total - step) * seconds_per_step)
    return f"[{'#' * filled}{'.' * (30 - filled)}] step {step:,} of {total:,}, {left} left"


def _rank_line(follower: Follower) -> str:
    rows = follower.read()[-RECENT_STEPS:]
    if not rows:
        return ""
    busy, empty, full = (
        sum(row[name] for row in rows)
        for name in ("busy_seconds", "blocked_empty_seconds", "blocked_full_seconds")
    )
    total = max(1e-9, busy + empty + full)
    joules = [row["energy_joules"] for row in rows]
    power = "power unknown" if None in joules else f"{sum(joules) / total:.0f} W"
    memory = compact(max(row["memory_bytes"] for row in rows), "B")
    return (
        f"{rows[-1]['role']} {rows[-1]['rank']}: busy {busy / total:.0%}, waits for work {empty / total:.0%}, "
        f"for room {full / total:.0%}; {memory}, {power}"
    )


def _float(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _number(value: float | None) -> str:
    return "unknown" if value is None or not math.isfinite(value) else f"{value:.3f}"
