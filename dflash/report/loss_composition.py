"""The loss of a run, split into what the composition of the steps explains and the rest.

Cells are fitted by weighted least squares as `segment + bucket + length inside the bucket`, a segment being one of 24 equal parts of the
run. Trends are taken from segments (the method of batch means), so that correlation between neighboring steps does no harm.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_SEGMENTS = 24


@dataclass(frozen=True)
class History:
    """What a run recorded. T steps, C cells with supervised slots."""

    step_T: NDArray[np.int64]
    loss_T: NDArray[np.float64]
    """Nats per unit of weight; not finite where the step was bad."""
    gradient_norm_T: NDArray[np.float64]
    skipped_T: NDArray[np.bool_]
    cell_step_C: NDArray[np.int64]
    cell_bucket_C: NDArray[np.int64]
    cell_length_C: NDArray[np.float64]
    """Mean tokens of the cell's rows."""
    cell_loss_C: NDArray[np.float64]
    """Nats per unit of weight."""
    cell_weight_C: NDArray[np.float64]
    period_steps: int | None = None
    """Steps of an epoch of the plan."""
    acceptance: float | None = None
    """Acceptance length of the last held-out evaluation."""


@dataclass(frozen=True)
class Trend:
    """A slope in nats per 1,000 steps with its 95 % interval; NaN where there are too few cells."""

    slope: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Fit:
    """Steps that count (finite, not skipped, with cells) and their loss with and without their composition."""

    step_T: NDArray[np.float64]
    loss_T: NDArray[np.float64]
    bucket_part_T: NDArray[np.float64]
    length_part_T: NDArray[np.float64]
    length_T: NDArray[np.float64]
    segment_step: NDArray[np.float64]
    segment_loss: NDArray[np.float64]
    cell_segment_C: NDArray[np.int64]
    cell_used_C: NDArray[np.bool_]

    @property
    def rest_T(self) -> NDArray[np.float64]:
        """The loss without what the composition explains."""
        return self.loss_T - self.bucket_part_T - self.length_part_T

    @property
    def half(self) -> int:
        """The first segment of the second half."""
        return len(self.segment_step) // 2


def fit_composition(history: History) -> Fit:
    """Fit a run's cells; steps that were bad, and cells without weight, are left out."""
    good_T = np.isfinite(history.loss_T) & ~history.skipped_T
    steps = history.step_T[good_T]
    used = (
        np.isin(history.cell_step_C, steps) & np.isfinite(history.cell_loss_C) & (history.cell_weight_C > 0)
    )
    have_cells = np.isin(steps, history.cell_step_C[used])
    steps, loss_T = steps[have_cells], history.loss_T[good_T][have_cells]
    place = np.searchsorted(steps, history.cell_step_C[used])
    weight, value = history.cell_weight_C[used], history.cell_loss_C[used]
    num_segments = max(1, min(NUM_SEGMENTS, len(steps) // 2))
    segment = place * num_segments // max(1, len(steps))
    buckets, bucket = np.unique(history.cell_bucket_C[used], return_inverse=True)
    level, effect = _additive(segment, bucket, value, weight, num_segments, len(buckets))
    length = np.log(np.maximum(1.0, history.cell_length_C[used]))
    inside = length - mean_by(bucket, length, weight, len(buckets))[bucket]
    left = value - level[segment] - effect[bucket]
    slope = np.sum(weight * inside * left) / max(1e-12, float(np.sum(weight * inside * inside)))
    cell_segment = np.full(len(used), -1)
    cell_segment[used] = segment
    return Fit(
        step_T=steps.astype(np.float64),
        loss_T=loss_T,
        bucket_part_T=mean_by(place, effect[bucket], weight, len(steps)),
        length_part_T=mean_by(place, slope * inside, weight, len(steps)),
        length_T=mean_by(place, length, np.ones(len(place)), len(steps)),
        segment_step=mean_by(segment, steps[place].astype(np.float64), np.ones(len(place)), num_segments),
        segment_loss=level,
        cell_segment_C=cell_segment,
        cell_used_C=used,
    )


def mean_by(group: NDArray, value: NDArray, weight: NDArray, count: int) -> NDArray[np.float64]:
    """Weighted mean of the values of each group 0 ... count - 1; 0 where a group is empty."""
    total = np.bincount(group, weights=weight, minlength=count)
    return np.bincount(group, weights=weight * value, minlength=count) / np.maximum(total, 1e-300)


def _additive(
    segment: NDArray, bucket: NDArray, value: NDArray, weight: NDArray, rows: int, columns: int
) -> tuple[NDArray, NDArray]:
    """Weighted least squares of `segment + bucket`; the bucket effects' weighted mean is zero."""
    if not len(value):
        return np.zeros(rows), np.zeros(columns)
    joint = np.bincount(segment * columns + bucket, weights=weight, minlength=rows * columns).reshape(
        rows, columns
    )
    normal = np.block([[np.diag(joint.sum(axis=1)), joint], [joint.T, np.diag(joint.sum(axis=0))]])
    right = np.concatenate(
        [
            np.bincount(segment, weights=weight * value, minlength=rows),
            np.bincount(bucket, weights=weight * value, minlength=columns),
        ]
    )
    solution = np.linalg.lstsq(normal, right, rcond=1e-10)[0]
    effect = solution[rows:]
    center = float(np.sum(joint.sum(axis=0) * effect) / joint.sum())
    return solution[:rows] + center, effect - center


def shares_explained(fit: Fit) -> tuple[float, float]:
    """Shares of the variance of step-to-step changes explained by buckets, and by buckets and lengths."""
    change = np.diff(fit.loss_T)
    if len(change) < 2 or not change.any():
        return 0.0, 0.0
    whole = float(np.mean(change**2))
    by_bucket = 1 - float(np.mean((change - np.diff(fit.bucket_part_T)) ** 2)) / whole
    by_length = 1 - float(np.mean(np.diff(fit.rest_T) ** 2)) / whole
    return max(0.0, by_bucket), max(0.0, by_length)


def autocorrelation(series_T: NDArray, lags: NDArray) -> NDArray[np.float64]:
    """Autocorrelation of a series at some lags, by the biased estimate (it never exceeds one)."""
    centered = series_T - series_T.mean() if len(series_T) else series_T
    power = float(np.sum(centered**2))
    if power <= 1e-18 * max(1, len(series_T)):
        return np.zeros(len(lags))
    size = 1 << (2 * len(centered)).bit_length()
    spectrum = np.abs(np.fft.rfft(centered, size)) ** 2
    return np.fft.irfft(spectrum, size)[lags] / power


def line(x: NDArray, y: NDArray, start: int) -> Trend:
    """A straight line through the last segments; slope per 1,000 steps."""
    x, y = x[start:], y[start:]
    if len(x) < 4:
        return Trend(float("nan"), float("nan"), float("nan"))
    centered = x - x.mean()
    spread = float(np.sum(centered**2))
    slope = float(np.sum(centered * y)) / spread
    left = y - y.mean() - slope * centered
    error = float(np.sqrt(np.sum(left**2) / (len(x) - 2) / spread))
    # 2.23 is the 97.5 % point of Student's t with ten degrees of freedom, those of twelve segments.
    return Trend(1000 * slope, 1000 * (slope - 2.23 * error), 1000 * (slope + 2.23 * error))
