"""Is a loss that jumps from step to step healthy? A pure function of what the run recorded.

A step of mixed batches holds a different share of long and short samples every time, and long samples are easier to predict, so the
loss must jump. It is healthy when the composition of the steps explains the jumps and the loss inside each bucket does not rise.

Thresholds are in `Thresholds`, each with its origin. They were set on simulated runs of seeds 0-99 (150 to 1,200 steps of four cells,
cells with a standard deviation of 0.05, 0.15 and 0.4 nats, heavy tails, drift, five kinds of fault) and are judged on seeds 100-199 in
`tests/report/test_verdict.py`, which holds the simulation.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dflash.report.loss_composition import (
    NUM_SEGMENTS,
    Fit,
    History,
    Trend,
    autocorrelation,
    fit_composition,
    line,
    mean_by,
    shares_explained,
)

Level = Literal["healthy", "watch", "unhealthy"]
Cause = Literal[
    "sampling noise", "plan order", "divergence", "blow-up", "skipped steps", "dead drafter", "too short"
]
MIN_STEPS = 48
MAX_LAG = 200


@dataclass(frozen=True)
class Thresholds:
    """Where a fault begins. The defaults lie between what healthy and faulty runs of seeds 0-99 showed."""

    order: float = 0.5
    """Greatest autocorrelation of the steps' mean length, beyond five standard errors of white noise."""
    rise: float = 4.2
    """Trend of the composition-adjusted loss over any last part of the run, in standard errors."""
    rise_share: float = 0.02
    """Least rise over that part, as a share of the loss: less is not worth a warning."""
    jump: float = 6.0
    """Sudden rise of the composition-adjusted loss, in standard errors; half of it where the gradient rose too."""
    jump_share: float = 0.05
    """Least sudden rise, as a share of the loss."""
    suddenness: float = 0.4
    """A jump holds at least this share of all that the loss rises from there; less is a slow divergence."""
    gradient: float = 6.0
    """Gradient norm after a step over the one before it (medians of 8 and 32 steps)."""
    fall_share: float = 0.03
    """A drafter whose loss never fell by this share of its first value has learned nothing."""
    acceptance: float = 1.05
    """A drafter with a smaller acceptance length drafts nothing of use."""
    skipped_share: float = 0.01
    """Share of skipped steps from which the run counts as blown up."""


@dataclass(frozen=True)
class Verdict:
    """The judgement and what it rests on."""

    level: Level
    cause: Cause
    reason: str
    explained_by_bucket: float
    """Share of the variance of step-to-step changes that the buckets of the steps explain."""
    explained_by_length: float
    """The same with the lengths inside the buckets."""
    trend: Trend
    """Of the composition-adjusted loss over the second half."""
    bucket_trends: dict[int, Trend]
    order: float
    """Greatest autocorrelation of the steps' mean length over lags from 1."""
    order_lag: int
    loss_at_period: float
    """Autocorrelation, at the plan's period, of the step-to-step changes; NaN where the run has fewer than two periods."""
    segment_step: NDArray[np.float64]
    segment_loss: NDArray[np.float64]


def judge(history: History, thresholds: Thresholds = Thresholds()) -> Verdict:
    """Judge a run.

    Args:
        history: at least 48 steps for a judgement; fewer give "watch", "too short".
        thresholds: where faults begin.
    """
    fit = fit_composition(history)
    order, lag = _order(fit.length_T, history.period_steps)
    shares = shares_explained(fit)
    level, cause, reason = _decide(history, fit, order, lag, shares[1], thresholds)
    return Verdict(
        level=level,
        cause=cause,
        reason=reason,
        explained_by_bucket=shares[0],
        explained_by_length=shares[1],
        trend=line(fit.segment_step, fit.segment_loss, fit.half),
        bucket_trends=_bucket_trends(history, fit),
        order=order,
        order_lag=lag,
        loss_at_period=_at_period(fit, history.period_steps),
        segment_step=fit.segment_step,
        segment_loss=fit.segment_loss,
    )


def _order(length_T: NDArray, period: int | None) -> tuple[float, int]:
    """The greatest autocorrelation of the steps' mean length, and its lag."""
    last = min(MAX_LAG, len(length_T) // 3)
    lags = list(range(1, last + 1))
    if period is not None and last < period <= len(length_T) // 2:
        lags.append(period)
    if not lags:
        return 0.0, 0
    values = autocorrelation(length_T, np.array(lags))
    best = int(np.argmax(values))
    return float(values[best]), lags[best]


def _at_period(fit: Fit, period: int | None) -> float:
    change = np.diff(fit.loss_T)
    if period is None or period < 1 or period * 2 > len(change):
        return float("nan")
    return float(autocorrelation(change, np.array([period]))[0])


def _bucket_trends(history: History, fit: Fit) -> dict[int, Trend]:
    """The trend of each bucket's own loss over the second half."""
    trends = {}
    count = len(fit.segment_step)
    for bucket in np.unique(history.cell_bucket_C):
        chosen = fit.cell_used_C & (history.cell_bucket_C == bucket) & (fit.cell_segment_C >= fit.half)
        segment = fit.cell_segment_C[chosen]
        present = np.unique(segment)
        means = mean_by(segment, history.cell_loss_C[chosen], history.cell_weight_C[chosen], count)
        trends[int(bucket)] = line(fit.segment_step[present], means[present], 0)
    return trends


def _rise(fit: Fit) -> tuple[float, float, int]:
    """The steepest rise over any last part of at least six segments.

    Returns:
        its slope in standard errors, the rise in nats, and its first segment.
    """
    x, y = fit.segment_step, fit.segment_loss
    # Second differences know the segments' noise whatever the trend; white noise of variance v gives them 6 v. The first segments
    # bend too much to be used.
    bend = np.diff(y[3:], 2)
    noise = float(np.mean(np.abs(bend))) * 1.2533 / np.sqrt(6) if len(bend) else 0.0
    best = (0.0, 0.0, 0)
    for start in range(len(x) // 4, len(x) - 5):
        centered = x[start:] - x[start:].mean()
        spread = float(np.sum(centered**2))
        slope = float(np.sum(centered * y[start:])) / spread
        score = slope * np.sqrt(spread) / max(noise, 1e-9)
        if score > best[0]:
            best = (float(score), slope * float(x[-1] - x[start]), start)
    return best


def _jump(fit: Fit) -> tuple[float, float, int]:
    """The greatest sudden rise: medians of a few steps after a step against as many before it.

    Returns:
        its size in standard errors, in nats, and the place of the step.
    """
    rest = fit.rest_T
    change = np.diff(rest)
    noise = 1.4826 * float(np.median(np.abs(change - np.median(change)))) / np.sqrt(2) if len(change) else 0.0
    best = (0.0, 0.0, 0)
    for window in (6, 16, 32):
        if window > max(6, len(rest) // NUM_SEGMENTS):
            continue
        middle = np.median(np.lib.stride_tricks.sliding_window_view(rest, window), axis=1)
        rises = middle[window:] - middle[:-window]
        place = int(np.argmax(rises))
        # The variance of a median is pi / 2 times that of a mean.
        score = float(rises[place]) / max(1e-9, noise * np.sqrt(np.pi / window))
        if score > best[0]:
            best = (score, float(rises[place]), place + window)
    return best


def _later_rise(fit: Fit, place: int) -> float:
    """How far the loss rises from just before a step to the highest segment after it."""
    before = float(np.median(fit.rest_T[max(0, place - 16) : max(1, place)]))
    here = min(place, len(fit.step_T) - 1)
    after = fit.segment_loss[fit.segment_step >= fit.step_T[here]]
    return float(after.max()) - before if len(after) else 0.0


def _gradient_jump(norm_T: NDArray) -> float:
    """The greatest ratio of the gradient norm after a step to the one before it, past the first tenth of the run."""
    norm = norm_T[np.isfinite(norm_T)]
    before, after = 32, 8
    if len(norm) < 2 * (before + after):
        return 1.0
    earlier = np.median(np.lib.stride_tricks.sliding_window_view(norm, before), axis=1)[
        : len(norm) - before - after + 1
    ]
    later = np.median(np.lib.stride_tricks.sliding_window_view(norm, after), axis=1)[before:]
    start = len(norm) // 10
    return float(np.max((later / np.maximum(earlier, 1e-30))[start:]))


def _decide(
    history: History, fit: Fit, order: float, lag: int, explained: float, limits: Thresholds
) -> tuple[Level, Cause, str]:
    bad = int(np.sum(history.skipped_T | ~np.isfinite(history.loss_T)))
    total = len(history.step_T)
    if bad and (bad / total > limits.skipped_share or not np.isfinite(history.loss_T[-3:]).any()):
        return "unhealthy", "blow-up", f"{bad} of {total:,} steps were not finite and were skipped."
    if len(fit.step_T) < MIN_STEPS:
        return (
            "watch",
            "too short",
            f"{len(fit.step_T)} usable steps are too few to judge; {MIN_STEPS} are needed.",
        )
    level = max(1e-9, float(np.median(fit.segment_loss)))
    score, size, place = _jump(fit)
    gradient = _gradient_jump(history.gradient_norm_T)
    # Where the plan's order mixes composition with time, what is left of the composition looks like jumps and trends.
    confounded = order > max(limits.order, 5 / np.sqrt(len(fit.step_T))) and gradient <= limits.gradient
    sudden = size > limits.suddenness * _later_rise(fit, place)
    least = limits.jump / 2 if gradient > limits.gradient else limits.jump
    if score > least and size > limits.jump_share * level and sudden and not confounded:
        return _blow_up(fit, size, place, gradient, limits)
    fall = _fall(fit)
    if fall < limits.fall_share or _useless(history.acceptance, fit, limits):
        return _dead(history.acceptance, fall, limits)
    score, size, start = _rise(fit)
    if score > limits.rise and size > limits.rise_share * level and not confounded:
        return (
            "unhealthy",
            "divergence",
            (
                f"Without the composition of the steps the loss has risen by {size:.3g} nats since step {fit.segment_step[start]:,.0f}."
            ),
        )
    if confounded:
        return (
            "watch",
            "plan order",
            (
                f"The mean length of the steps repeats itself (autocorrelation {order:.2f} at {lag} steps): the plan's order, "
                f"not the drafter, makes the loss swing; composition explains {explained:.0%} of its changes."
            ),
        )
    if bad:
        return (
            "watch",
            "skipped steps",
            f"{bad} of {total:,} steps were not finite and were skipped; the rest looks sound.",
        )
    if gradient > limits.gradient:
        return (
            "watch",
            "blow-up",
            f"The gradient norm rose {gradient:.0f}-fold at once; the loss has not followed.",
        )
    return "healthy", "sampling noise", _healthy_reason(fit, explained)


def _blow_up(
    fit: Fit, size: float, place: int, gradient: float, limits: Thresholds
) -> tuple[Level, Cause, str]:
    before = float(np.median(fit.rest_T[max(0, place - 32) : place]))
    now = float(np.median(fit.rest_T[-max(8, len(fit.rest_T) // 20) :]))
    back = now - before < 0.25 * size
    norm = f", the gradient norm {gradient:.0f}-fold" if gradient > limits.gradient else ""
    end = "and has come back" if back else "and has not come back"
    sentence = f"At step {fit.step_T[min(place, len(fit.step_T) - 1)]:,.0f} the loss jumped by {size:.3g} nats{norm}, {end}."
    return ("watch" if back else "unhealthy"), "blow-up", sentence


def _fall(fit: Fit) -> float:
    """How far the loss came down from the first segment to the lower quarter of all, as a share of it."""
    first = float(fit.segment_loss[0])
    return (first - float(np.quantile(fit.segment_loss, 0.25))) / max(1e-9, abs(first))


def _useless(acceptance: float | None, fit: Fit, limits: Thresholds) -> bool:
    """Whether nothing is accepted and the loss no longer falls."""
    if acceptance is None or acceptance >= limits.acceptance:
        return False
    trend = line(fit.segment_step, fit.segment_loss, fit.half)
    reach = trend.slope / 1000 * float(fit.segment_step[-1] - fit.segment_step[fit.half])
    return reach > -limits.fall_share * float(fit.segment_loss[-1])


def _dead(acceptance: float | None, fall: float, limits: Thresholds) -> tuple[Level, Cause, str]:
    if acceptance is not None and acceptance >= limits.acceptance:
        return (
            "healthy",
            "sampling noise",
            (
                f"The loss is flat, and the acceptance length is {acceptance:.2f}: the drafter had learned before this run began."
            ),
        )
    known = "unknown" if acceptance is None else f"{acceptance:.2f}"
    return (
        "unhealthy",
        "dead drafter",
        (
            f"The loss has come down by {max(0.0, fall):.1%} of its first value and no longer falls; the acceptance length is {known}."
        ),
    )


def _healthy_reason(fit: Fit, explained: float) -> str:
    trend = line(fit.segment_step, fit.segment_loss, fit.half)
    way = "falls" if trend.upper < 0 else "is level"
    return (
        f"The composition of the steps explains {explained:.0%} of the loss's changes from step to step; without it the loss {way} "
        f"({trend.slope:+.2g} nats per 1,000 steps)."
    )
