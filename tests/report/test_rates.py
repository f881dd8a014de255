"""Predicted and actual rates, worked out by hand."""

import math
from pathlib import Path

import polars as pl
import pytest

from dflash.report.rates import service_rates
from dflash.report.tables import RunRecord, read_run
from tests.report.world import write_world


def record(busy: list[tuple[str, int, float]]) -> RunRecord:
    metrics = pl.DataFrame({"useful_tokens": [600, 400], "seconds": [3.0, 2.0]})
    schema = {"role": pl.String, "rank": pl.Int64, "busy_seconds": pl.Float64}
    ranks = pl.DataFrame(busy, schema=schema, orient="row")
    return RunRecord(
        metrics=metrics,
        cells=pl.DataFrame(),
        ranks=ranks,
        heldout=pl.DataFrame(),
        machines=[],
        num_topologies=1,
    )


def test_the_slower_side_predicts() -> None:
    busy = [("target", 0, 2.0), ("target", 1, 1.0), ("target", 1, 1.0), ("drafter", 2, 4.0)]
    rates = service_rates(record(busy))
    assert rates.by_role == {"drafter": 250.0, "target": 500.0}
    assert (rates.predicted, rates.actual) == (250.0, 200.0)


def test_nothing_metered_is_unknown() -> None:
    rates = service_rates(record([]))
    assert rates.by_role == {} and math.isnan(rates.predicted) and rates.actual == 200.0


def test_a_run_never_beats_its_prediction(tmp_path: Path) -> None:
    """Ranks of the synthetic run are busy for 0.6 s of steps of about a second."""
    rates = service_rates(read_run(write_world(tmp_path).stages["fit"]))
    assert (
        rates.by_role["target"] == pytest.approx(rates.by_role["drafter"]) and rates.actual < rates.predicted
    )
