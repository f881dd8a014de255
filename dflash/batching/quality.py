"""How good a plan is: padding, mixing and repetition, as numbers. Drawn elsewhere."""

from typing import Any

import numpy as np
import polars as pl

from dflash.batching.batch import EpochIndex
from dflash.batching.cost import Limits
from dflash.batching.table import sums


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None where the whole is 0, as for an empty data set."""
    return float(part) / float(whole) if whole else None


def padding(table: pl.DataFrame, limits: Limits, useful_cost: float) -> dict[str, Any]:
    """Padding and budget figures of an epoch.

    Args:
        table: `EPOCH_COLUMNS`.
        limits: the budgets.
        useful_cost: target cost of all samples if none were padded.

    Returns:
        padding_efficiency = useful / padded tokens; fill = padded / (micro-batches x memory in tokens);
        utilization, their product; work_efficiency = cost without padding / with it; over_budget, the micro-batches
        that break a budget with more than one row or break the memory at all; single_rows_above_budget, the long
        rows that run alone because memory allows it.
    """
    full = table.filter(pl.col("rows") > 0)
    rows, width = full["rows"].to_numpy(), full["width"].to_numpy()
    useful, padded = int(full["useful_tokens"].sum()), int(full["padded_tokens"].sum())
    cost = limits.cost(width) * rows
    above = cost > limits.budget_tokens * (1 + 1e-9)
    over = (above & (rows > 1)) | (rows * width > limits.largest_width)
    space = full.height * limits.largest_width
    return {
        "micro_batches": full.height,
        "steps": int(table["step"].n_unique()),
        "samples": int(full["samples"].sum()),
        "useful_tokens": useful,
        "padded_tokens": padded,
        "padding_efficiency": ratio(useful, padded),
        "fill": ratio(padded, space),
        "utilization": ratio(useful, space),
        "work_efficiency": ratio(useful_cost, float(cost.sum())),
        "over_budget": int(over.sum()),
        "single_rows_above_budget": int((above & (rows == 1)).sum()),
        "largest_micro_batch_tokens": int((rows * width).max(initial=0)),
        "shapes": len(np.unique(width)),
        "anchors": int(full["anchors"].sum()),
    }


def coverage(index: EpochIndex, num_planned: int) -> dict[str, Any]:
    """Share of the planned samples that occur (must be 1) and how often one occurs at most (must be 1)."""
    occurrences = np.bincount(index.sample_ids_N)
    return {
        "coverage": ratio(int(np.count_nonzero(occurrences)), num_planned),
        "multiplicity": int(occurrences.max(initial=0)),
    }


def repetition(first: EpochIndex, second: EpochIndex, chosen_N: np.ndarray) -> dict[str, float | None]:
    """Repeat rate R, chance level and lift between two epochs, over the chosen samples.

    R is the chance that a pair that is together in the first epoch is together again in the second;
    lift = R / chance, 1 for random batches.

    Args:
        first, second: the epochs.
        chosen_N: bool, the samples of the data set that count.
    """
    here, there = _batch_of(first, len(chosen_N)), _batch_of(second, len(chosen_N))
    counted = chosen_N & (here >= 0) & (there >= 0)
    here, there = here[counted], there[counted]
    keys = here * (int(there.max(initial=0)) + 1) + there
    keys.sort()
    together = np.diff(np.flatnonzero(np.diff(keys, prepend=-1, append=-1)))
    again = _pairs(together)
    before = _pairs(np.bincount(here))
    chance = ratio(_pairs(np.bincount(there)), len(here) * (len(here) - 1) / 2)
    rate = ratio(again, before)
    lift = ratio(rate, chance) if rate is not None and chance else None
    return {"repeat_rate": rate, "chance": chance, "lift": lift}


def _pairs(sizes: np.ndarray) -> float:
    size = sizes.astype(np.float64)
    return float((size * (size - 1)).sum() / 2)


def _batch_of(index: EpochIndex, num_samples: int) -> np.ndarray:
    """Batch of every sample of the data set, int64; -1 for one that is not planned."""
    batch = np.full(num_samples, -1, np.int64)
    batch[index.sample_ids_N] = np.repeat(np.arange(len(index.rows)), np.diff(index.offsets))
    return batch


def variance_share(lengths_N: np.ndarray, offsets: np.ndarray) -> float | None:
    """Share of the variance of length that lies between consecutive groups (eta squared).

    0 if every group has the same mean length, 1 if lengths are equal inside each; (groups - 1) / (N - 1) by chance.
    """
    size = np.diff(offsets).astype(np.float64)
    length = lengths_N.astype(np.float64)
    if not len(length):
        return None
    means = sums(lengths_N, offsets)[size > 0] / size[size > 0]
    between = float((size[size > 0] * (means - length.mean()) ** 2).sum())
    return ratio(between, float(((length - length.mean()) ** 2).sum()))


def step_offsets(index: EpochIndex, num_cells: int) -> np.ndarray:
    """int64[steps + 1] into the samples of an epoch in training order."""
    return index.offsets[::num_cells]


def autocorrelation(values: np.ndarray, max_lag: int = 200) -> np.ndarray:
    """rho_k of a series for k = 1 ... max_lag, float64: sum (m_t - m)(m_{t+k} - m) / ((n - k) Var m).

    White noise stays within 2 / sqrt(n) 95 times of 100; a sawtooth shows as 1 at its period. Lags reach a quarter of
    the series at most; a constant series gives zeros.
    """
    size = len(values)
    lags = min(max_lag, size // 4)
    if lags < 1:
        return np.zeros(0)
    centered = np.asarray(values, np.float64) - float(np.mean(values))
    variance = float((centered**2).mean())
    if variance <= 1e-12 * max(1.0, float(np.mean(values)) ** 2):
        return np.zeros(lags)
    spectrum = np.fft.rfft(centered, 2 * size)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[1 : lags + 1]
    return products / ((size - np.arange(1, lags + 1)) * variance)


def steps_of(table: pl.DataFrame) -> pl.DataFrame:
    """A row a step: samples, useful_tokens, padded_tokens, anchors, mean_length."""
    summed = table.group_by("step").agg(pl.col("samples", "useful_tokens", "padded_tokens", "anchors").sum())
    return summed.sort("step").with_columns(
        (pl.col("useful_tokens") / pl.col("samples")).alias("mean_length")
    )


def spread(values: np.ndarray) -> float | None:
    """Coefficient of variation: standard deviation over mean."""
    return ratio(float(np.std(values)), float(np.mean(values))) if len(values) else None


def mixing(table: pl.DataFrame, index: EpochIndex, lengths_N: np.ndarray, num_cells: int) -> dict[str, Any]:
    """What a step is made of: variance shares, spread of the sums, autocorrelation of the mean length.

    The last step is left out of the spreads and of the autocorrelation: it may be short.
    """
    steps = steps_of(table)
    whole = steps.head(max(steps.height - 1, 0))
    rho = autocorrelation(whole["mean_length"].to_numpy())
    band = ratio(2.0, float(np.sqrt(max(whole.height, 1))))
    lengths = lengths_N[index.sample_ids_N]
    return {
        "variance_between_batches": variance_share(lengths, index.offsets),
        "variance_between_steps": variance_share(lengths, step_offsets(index, num_cells)),
        "spread_tokens": spread(whole["useful_tokens"].to_numpy()),
        "spread_samples": spread(whole["samples"].to_numpy()),
        "spread_anchors": spread(whole["anchors"].to_numpy()),
        "autocorrelation": [round(value, 6) for value in rho.tolist()],
        "autocorrelation_band": band,
    }


def anchors_by_bucket(table: pl.DataFrame, cap: int) -> list[dict[str, Any]]:
    """For each bucket its micro-batches, padding, anchors, and anchors that the cap of a micro-batch cuts."""
    cut = (pl.col("anchors") - cap).clip(lower_bound=0)
    grouped = table.filter(pl.col("rows") > 0).group_by("bucket", "width")
    rows = grouped.agg(
        pl.len().cast(pl.Int64).alias("micro_batches"),
        pl.col("samples", "useful_tokens", "padded_tokens", "anchors").sum(),
        cut.sum().alias("anchors_cut"),
    )
    return rows.sort("width").to_dicts()
