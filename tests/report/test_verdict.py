"""The verdict on simulated runs: thresholds were set on seeds 0-99 and are judged here on 100-199."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dflash.report.loss_composition import autocorrelation
from dflash.report.verdict import MIN_STEPS, Verdict, judge
from tests.report.simulated import NOISE_NATS, Fault, simulate

FAULTS: tuple[Fault, ...] = ("plan order", "divergence", "blow-up", "dead drafter")
SEEDS = range(100, 200)


def verdicts(fault: Fault, noise_nats: float, seeds: range) -> list[Verdict]:
    return [judge(simulate(fault, noise_nats, seed)) for seed in seeds]


@pytest.mark.parametrize("noise_nats", NOISE_NATS)
def test_sampling_noise_is_healthy(noise_nats: float) -> None:
    alarms = [each for each in verdicts("none", noise_nats, SEEDS) if each.level != "healthy"]
    assert len(alarms) <= 0.05 * len(SEEDS), [each.reason for each in alarms]


@pytest.mark.parametrize("noise_nats", NOISE_NATS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: Fault, noise_nats: float) -> None:
    found = Counter(each.cause for each in verdicts(fault, noise_nats, SEEDS) if each.level != "healthy")
    assert found[fault] >= 0.95 * len(SEEDS), found


@pytest.mark.parametrize(
    ("fault", "level"),
    [
        ("plan order", {"watch"}),
        ("divergence", {"unhealthy"}),
        ("blow-up", {"watch", "unhealthy"}),
        ("dead drafter", {"unhealthy"}),
    ],
)
def test_a_fault_has_its_level(fault: Fault, level: set[str]) -> None:
    found = [each.level for each in verdicts(fault, 0.05, range(100, 110)) if each.cause == fault]
    assert found and set(found) <= level


def test_composition_explains_what_it_was_made_to_explain() -> None:
    """With hardly any noise in the cells the composition of the steps is all there is; with much it is little."""
    quiet = judge(simulate("none", 0.001, 101))
    loud = judge(simulate("none", 3.0, 101))
    assert quiet.explained_by_length > 0.9
    assert loud.explained_by_length < 0.4
    assert quiet.explained_by_length > quiet.explained_by_bucket - 0.01


def test_bucket_trends_tell_the_bucket_that_gets_worse() -> None:
    history = simulate("none", 0.05, 102)
    worst = int(history.cell_bucket_C[0])
    steps = len(history.step_T)
    late = np.clip(history.cell_step_C / steps - 0.5, 0, None) * 4
    worse = replace(
        history, cell_loss_C=history.cell_loss_C + np.where(history.cell_bucket_C == worst, late, 0)
    )
    trends = judge(worse).bucket_trends
    assert trends[worst].lower > 0
    assert all(trend.lower <= 0 for bucket, trend in trends.items() if bucket != worst)


def test_a_trend_is_that_of_the_line() -> None:
    history = simulate("none", 0.05, 103)
    rising = replace(
        history,
        cell_loss_C=5 + 0.002 * history.cell_step_C.astype(float),
        loss_T=5 + 0.002 * history.step_T.astype(float),
    )
    trend = judge(rising).trend
    assert trend.slope == pytest.approx(2.0, rel=0.01) and trend.lower > 1.9


def test_few_steps_are_not_judged() -> None:
    history = simulate("none", 0.05, 104)
    keep = history.cell_step_C < MIN_STEPS - 1
    short = replace(
        history,
        step_T=history.step_T[: MIN_STEPS - 1],
        loss_T=history.loss_T[: MIN_STEPS - 1],
        gradient_norm_T=history.gradient_norm_T[: MIN_STEPS - 1],
        skipped_T=history.skipped_T[: MIN_STEPS - 1],
        cell_step_C=history.cell_step_C[keep],
        cell_bucket_C=history.cell_bucket_C[keep],
        cell_length_C=history.cell_length_C[keep],
        cell_loss_C=history.cell_loss_C[keep],
        cell_weight_C=history.cell_weight_C[keep],
    )
    assert (judge(short).level, judge(short).cause) == ("watch", "too short")


def test_no_step_at_all() -> None:
    empty = np.zeros(0)
    history = simulate("none", 0.05, 104)
    nothing = replace(
        history,
        step_T=empty.astype(int), loss_T=empty, gradient_norm_T=empty, skipped_T=empty.astype(bool),
        cell_step_C=empty.astype(int), cell_bucket_C=empty.astype(int), cell_length_C=empty, cell_loss_C=empty, cell_weight_C=empty,
    )  # fmt: skip
    assert judge(nothing).cause == "too short"


@pytest.mark.parametrize(
    ("bad", "level", "cause"), [(1, "watch", "skipped steps"), (60, "unhealthy", "blow-up")]
)
def test_skipped_steps_are_named(bad: int, level: str, cause: str) -> None:
    history = simulate("none", 0.05, 105)
    skipped = np.zeros(len(history.step_T), bool)
    skipped[20 : 20 + bad] = True
    verdict = judge(replace(history, skipped_T=skipped))
    assert (verdict.level, verdict.cause) == (level, cause)
    assert f"{bad} of " in verdict.reason


def test_a_warm_start_is_not_dead() -> None:
    """A run that starts from a trained drafter has a flat loss, and accepts."""
    history = simulate("dead drafter", 0.05, 106)
    assert judge(replace(history, acceptance=2.4)).level == "healthy"
    assert judge(replace(history, acceptance=1.01)).cause == "dead drafter"


def test_autocorrelation_is_the_textbook_sum() -> None:
    series = np.random.default_rng(0).normal(size=57)
    centered = series - series.mean()
    for lag in (1, 5, 20):
        expected = float((centered[lag:] * centered[:-lag]).sum() / (centered**2).sum())
        assert autocorrelation(series, np.array([lag]))[0] == pytest.approx(expected)
    assert autocorrelation(np.ones(9), np.array([1])).tolist() == [0.0]
