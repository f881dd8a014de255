"""What the sides could do, from their own meters, beside what the run did."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from dflash.report.tables import RunRecord, numbers


@dataclass(frozen=True)
class Rates:
    """Useful tokens per second; NaN where nothing was metered."""

    by_role: dict[str, float]
    """What all ranks of a role would do if none ever waited: useful tokens / mean busy seconds of its ranks."""
    predicted: float
    """The least of them, min(supply, demand)."""
    actual: float
    """Useful tokens / seconds of the steps."""


def service_rates(run: RunRecord) -> Rates:
    """Rates of each role and of the run, over the steps that were timed."""
    useful = float(numbers(run.metrics, "useful_tokens").sum())
    seconds = float(np.nansum(numbers(run.metrics, "seconds")))
    busy = (
        run.ranks.group_by("role", "rank")
        .agg(pl.col("busy_seconds").sum())
        .group_by("role")
        .agg(pl.col("busy_seconds").mean())
        .sort("role")
    )
    by_role = {
        row["role"]: useful / row["busy_seconds"] if row["busy_seconds"] else float("nan")
        for row in busy.iter_rows(named=True)
    }
    known = [rate for rate in by_role.values() if np.isfinite(rate)]
    return Rates(by_role, min(known, default=float("nan")), useful / seconds if seconds > 0 else float("nan"))
