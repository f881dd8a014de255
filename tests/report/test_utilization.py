"""The share of a planted device's peak that a run uses."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from dflash.report.tables import RunRecord, read_run
from dflash.report.training_section import machine_section
from dflash.report.utilization import utilization
from tests.report.world import machine, write_world


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """Three steps of 2 s each with 1,000 tokens, 100 anchors of 8 places, and 600 supervised slots."""
    read = read_run(write_world(tmp_path_factory.mktemp("world"), steps=24).stages["fit"])
    metrics = read.metrics.head(3).with_columns(
        useful_tokens=pl.lit(1000), anchors=pl.lit(100), supervised_slots=pl.lit(600), seconds=pl.lit(2.0)
    )
    return replace(read, metrics=metrics)


TARGET = 2 * 500_000 * 3000
DRAFTER = 6 * 10_000 * 3000 + 6 * 40_000 * 300 * 8 + 4 * 60_000 * 1800


def test_each_role_has_its_share(run: RunRecord) -> None:
    found = utilization(run)
    assert found["target"].share == pytest.approx(TARGET / (6.0 * 1e12))
    assert found["drafter"].share == pytest.approx(DRAFTER / (6.0 * 1e12))


def test_ranks_that_play_both_roles_and_more_ranks_of_a_role(run: RunRecord) -> None:
    both = replace(run, machines=[machine(0, "both")])
    assert utilization(both)["both"].share == pytest.approx((TARGET + DRAFTER) / (6.0 * 1e12))
    two = replace(run, machines=[machine(0, "target"), machine(1, "target", peak_flops=3e12)])
    assert utilization(two)["target"].share == pytest.approx(TARGET / (6.0 * 4e12))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda run: {"machines": [machine(0, "target", peak_flops=None, device="CPU")]}, "not known: CPU"),
        (lambda run: {"machines": [machine(0, "target", target_weights=None)]}, "mixture of experts"),
        (lambda run: {"num_topologies": 2}, "topology changed"),
        (
            lambda run: {"metrics": run.metrics.with_columns(seconds=pl.lit(None, pl.Float64))},
            "no step was timed",
        ),
    ],
)
def test_what_is_unknown_says_why(
    run: RunRecord, change: Callable[[RunRecord], dict[str, object]], reason: str
) -> None:
    found = utilization(replace(run, **change(run)))["target"]  # type: ignore[arg-type]
    assert math.isnan(found.share) and reason in found.reason


def test_the_page_shows_the_share_or_the_reason(run: RunRecord, tmp_path: Path) -> None:
    known = machine(0, "target", peak_flops=1e10)
    section = machine_section(
        tmp_path, replace(run, machines=[known, machine(1, "drafter", peak_flops=None)])
    )
    assert f">{TARGET / (6.0 * 1e10):.1%}<" in section and ">10 GFLOP/s<" in section
    assert "unknown: the peak of this device is not known: Planted &lt;drafter&gt;" in section
