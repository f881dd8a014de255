"""Finished runs as sides of a comparison: what differs between them, their curves, and what was measured."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.report.comparison import Measured, common_tokens, value_at
from dflash.report.comparison_figures import Curves
from dflash.report.tables import HELDOUT_SAMPLE_COLUMNS, RunRecord, numbers, read_run, read_table

SEEDS = ("batching.seed", "anchors.seed", "training.seed")
"""Settings whose change makes another run of the same side."""


@dataclass(frozen=True)
class Run:
    """One experiment's results as the comparison needs them."""

    name: str
    settings: Mapping[str, str]
    """Dotted names and JSON values."""
    curves: Curves
    tokens_per_second: float
    padding_efficiency: float
    tokens_P: NDArray[np.float64]
    """Tokens that verifying forwards committed on each prompt."""
    forwards_P: NDArray[np.float64]
    samples_P: tuple[str, ...]
    """Held-out samples of the last evaluation, by the hash of their content, in its order."""
    losses_P: NDArray[np.float64]
    """Sum of the losses over each held-out sample's supervised slots in nats."""
    slots_P: NDArray[np.float64]
    """Their number."""
    paired: bool
    """False where the cap of anchors cut some: the run then saw other anchors than its peers."""

    @property
    def acceptance(self) -> float:
        """Tokens per verifying forward, pooled over prompts."""
        return float(self.tokens_P.sum() / max(1.0, self.forwards_P.sum()))


@dataclass(frozen=True)
class Side:
    """Runs whose settings differ in seeds alone."""

    name: str
    runs: Sequence[Run]


def read_experiment(name: str, settings: Mapping[str, Any], fit: Path, evaluate: Path) -> Run:
    """Read what the comparison needs of one experiment.

    Raises:
        ValueError: a table is missing or lacks a column.
    """
    record = read_run(fit)
    useful, padded = (
        float(numbers(record.metrics, column).sum()) for column in ("useful_tokens", "padded_tokens")
    )
    seconds = float(np.nansum(numbers(record.metrics, "seconds")))
    decodes = [
        json.loads(line) for line in (evaluate / "decodes.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    heldout = read_table(fit / "heldout_samples.parquet", HELDOUT_SAMPLE_COLUMNS)
    # The first run is the prefill's token, which no verifying forward committed.
    committed = [each["runs"][1:] for each in decodes]
    return Run(
        name=name,
        settings=dict(flat(settings)),
        curves=_curves(record),
        tokens_per_second=useful / seconds if seconds > 0 else math.nan,
        padding_efficiency=useful / padded if padded else math.nan,
        tokens_P=np.array([sum(each) for each in committed], dtype=np.float64),
        forwards_P=np.array([len(each) for each in committed], dtype=np.float64),
        samples_P=tuple(heldout["sample"]),
        losses_P=numbers(heldout, "loss_sum"),
        slots_P=numbers(heldout, "slots"),
        paired=not numbers(record.metrics, "cut_anchors").any(),
    )


def _curves(record: RunRecord) -> Curves:
    at = record.heldout["step"].to_numpy()
    place = np.searchsorted(record.metrics["step"].to_numpy(), at, side="right")
    elapsed = np.concatenate([[0.0], np.nancumsum(numbers(record.metrics, "seconds"))])
    return Curves(
        tokens=record.tokens_at(at),
        seconds=elapsed[place],
        loss=numbers(record.heldout, "loss"),
        acceptance=numbers(record.heldout, "acceptance"),
    )


def flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and JSON values of nested settings."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            rows += flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, json.dumps(value, ensure_ascii=False)))
    return rows


def sides_of(runs: Sequence[Run]) -> list[Side]:
    """Gather runs that differ in seeds alone, in the given order."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        same = tuple(sorted((name, value) for name, value in run.settings.items() if name not in SEEDS))
        groups.setdefault(same, []).append(run)
    sides: list[Side] = []
    for group in groups.values():
        columns = zip(*(run.name for run in group), strict=False)
        shared = "".join(
            letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, columns)
        ).rstrip("-_")
        taken = {side.name for side in sides}
        name = shared if len(group) > 1 and shared and shared not in taken else group[0].name
        sides.append(Side(name, group))
    return sides


def differing(sides: Sequence[Side]) -> list[tuple[str, ...]]:
    """Settings that differ between sides: the name, then each side's value; seeds are left out."""
    names = dict.fromkeys(name for side in sides for name in side.runs[0].settings if name not in SEEDS)
    rows = [(name, *(side.runs[0].settings.get(name, "not set") for side in sides)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def quantities(sides: Sequence[Side]) -> tuple[float, dict[str, dict[str, Measured]]]:
    """What is compared: quantity -> side -> measured; and the useful tokens at which curves are compared."""
    common = common_tokens([run.curves.tokens for side in sides for run in side.runs])
    found: dict[str, dict[str, Measured]] = {}
    pairable = same_samples([run for side in sides for run in side.runs])
    for side in sides:
        curves = [run.curves for run in side.runs]
        loss = np.array([value_at(each.tokens, each.loss, common) for each in curves])
        forced = np.array([value_at(each.tokens, each.acceptance, common) for each in curves])
        speed = np.array([run.tokens_per_second for run in side.runs])
        decoded = np.array([run.acceptance for run in side.runs])
        found.setdefault("held-out loss (nats)", {})[side.name] = Measured(
            loss, by_sample(side.runs) if pairable else None
        )
        found.setdefault("teacher-forced acceptance length (tokens)", {})[side.name] = Measured(forced)
        found.setdefault("decoded acceptance length (tokens)", {})[side.name] = Measured(
            decoded, by_prompt(side.runs)
        )
        found.setdefault("useful tokens/s", {})[side.name] = Measured(speed)
    return common, found


def same_samples(runs: Sequence[Run]) -> bool:
    """Whether all runs were evaluated on the same held-out samples, so that their losses pair up."""
    return len({run.samples_P for run in runs}) == 1 and bool(runs[0].samples_P)


def by_sample(runs: Sequence[Run]) -> NDArray[np.float64]:
    """The held-out loss of each run's last evaluation [R], in nats, split over its samples [R, P]; see `split`."""
    return np.stack([split(run.losses_P, run.slots_P) for run in runs])


def by_prompt(runs: Sequence[Run]) -> NDArray[np.float64] | None:
    """The pooled acceptance of each run [R] split over its prompts [R, P]; see `split`.

    None where the runs were decoded on different numbers of prompts.
    """
    if len({len(run.tokens_P) for run in runs}) != 1 or not len(runs[0].tokens_P):
        return None
    return np.stack([split(run.tokens_P, run.forwards_P) for run in runs])


def split(parts_P: NDArray[np.float64], sizes_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """A ratio of sums, sum(parts) / sum(sizes), split over what it was summed over, so that the mean is the ratio.

    A ratio of sums is no mean of ratios; to first order one item moves it by (part - ratio * size) / mean size.
    """
    ratio = float(parts_P.sum() / max(1.0, sizes_P.sum()))
    return ratio + (parts_P - ratio * sizes_P) / max(1e-9, float(sizes_P.mean()))
