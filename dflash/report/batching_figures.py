"""Figures of the batch plan: lengths, boundaries, policies, and what the steps are made of."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, PercentFormatter
from numpy.typing import NDArray

from dflash.report.theme import Theme, canvas, label, legend, note, whole_numbers

NUM_BINS = 60
MAX_STEPS = 120


def length_bins(lengths: NDArray[np.int64], samples: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray]:
    """Gather a histogram of exact lengths into bins of equal ratio.

    Returns:
        edges [bins + 1] in tokens, samples of each bin [bins], tokens of each bin [bins]. A bin holds lower < length <= upper.
    """
    low, high = max(1, int(lengths.min())), int(lengths.max())
    edges = np.unique(np.round(np.geomspace(low, max(high, low + 1), NUM_BINS + 1)).astype(np.int64))
    edges[0] -= 1
    place = np.clip(np.searchsorted(edges, lengths, side="left") - 1, 0, len(edges) - 2)
    count = np.bincount(place, weights=samples, minlength=len(edges) - 1)
    tokens = np.bincount(place, weights=samples * lengths, minlength=len(edges) - 1)
    return edges, count, tokens


def draw_lengths(
    theme: Theme, lengths: NDArray[np.int64], samples: NDArray[np.int64], widths: Sequence[int]
) -> Figure:
    """Where the samples and where the tokens are, with the buckets' upper bounds.

    Args:
        theme: the figure's colors.
        lengths, samples: a length in tokens and how many samples have it.
        widths: the buckets' upper bounds in tokens.
    """
    figure, (upper, lower) = canvas(theme, rows=2, height=1.9, sharex=True)
    kept = lengths > 0
    edges, count, tokens = length_bins(lengths[kept], samples[kept])
    for ax, values, color, y in (
        (upper, count, theme.series[0], "share of samples"),
        (lower, tokens, theme.series[1], "share of tokens"),
    ):
        ax.stairs(values / max(1.0, values.sum()), edges, fill=True, color=color, alpha=0.85)
        for number, width in enumerate(widths):
            ax.axvline(
                width,
                color=theme.ink,
                linewidth=0.8,
                linestyle=(0, (4, 3)),
                label="upper bound of a bucket" if number == 0 else None,
            )
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        label(theme, ax, x="", y=y)
    lower.set_xscale("log")
    lower.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    lower.xaxis.set_major_formatter("{x:,.0f}")
    lower.xaxis.set_minor_formatter("")
    lower.set_xlabel("length of a sample (tokens, logarithmic)", color=theme.ink, fontsize=9.5)
    if len(widths):
        legend(theme, upper, loc="upper left")
    return figure


def draw_bucket_curve(
    theme: Theme,
    num_buckets: Sequence[int],
    efficiency: Sequence[float],
    chosen: int,
    others: Mapping[str, float],
) -> Figure:
    """Padding efficiency over the number of buckets, and what simpler boundaries reach with the chosen number.

    Args:
        theme: the figure's colors.
        num_buckets, efficiency: the curve of optimal boundaries; useful / padded tokens.
        chosen: the plan's number of buckets.
        others: name of a way to choose boundaries -> its efficiency with as many buckets.
    """
    figure, (ax,) = canvas(theme)
    ax.plot(num_buckets, efficiency, color=theme.series[0], marker=".", label="optimal boundaries")
    ax.axvline(chosen, color=theme.ink, linewidth=0.8, linestyle=(0, (4, 3)), label=f"chosen: {chosen}")
    for number, (name, value) in enumerate(others.items(), start=1):
        ax.plot(
            [chosen],
            [value],
            linestyle="",
            marker="sD^vPX"[number % 6],
            markersize=7,
            color=theme.series_color(number),
            label=name,
        )
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    whole_numbers(ax)
    label(theme, ax, x="buckets (number of shapes)", y="useful / padded tokens")
    legend(theme, ax, loc="lower right")
    return figure


def draw_policies(
    theme: Theme, names: Sequence[str], chosen: str, panels: Mapping[str, Sequence[float | None]]
) -> Figure:
    """One row of bars per quantity, one bar per policy; the chosen one stands out.

    Args:
        theme: the figure's colors.
        names: the policies.
        chosen: the plan's policy.
        panels: name of a quantity with its unit -> its value for each policy; None where it does not apply.
    """
    figure, axes = canvas(theme, columns=len(panels), height=0.8 + 0.32 * len(names), sharey=True)
    places = np.arange(len(names))
    for ax, (title, values) in zip(axes, panels.items(), strict=True):
        widths = [0.0 if value is None else value for value in values]
        colors = [theme.series[0] if name == chosen else theme.faint for name in names]
        ax.barh(places, widths, color=colors, edgecolor=theme.ink, linewidth=0.6)
        ax.set_xlim(0, max([*widths, 1e-12]) * 1.35)
        for place, value in zip(places, values, strict=True):
            shown = "does not apply" if value is None else f"{value:.3g}"
            ax.annotate(
                shown,
                (value or 0.0, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                color=theme.ink,
                fontsize=8,
            )
        ax.grid(False, axis="y")
        label(theme, ax, x="", y="", title=title)
    axes[0].set_yticks(places, names)
    axes[0].invert_yaxis()
    return figure


def step_composition(
    step: NDArray[np.int64], bucket: NDArray[np.int64], tokens: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Useful tokens of each step by bucket.

    Returns:
        steps [T] in order, tokens [T, buckets].
    """
    steps, place = np.unique(step, return_inverse=True)
    width = int(bucket.max()) + 1 if len(bucket) else 0
    sums = np.bincount(place * width + bucket, weights=tokens, minlength=len(steps) * width)
    return steps, sums.astype(np.float64).reshape(len(steps), width)


def draw_composition(
    theme: Theme,
    step: NDArray[np.int64],
    bucket: NDArray[np.int64],
    tokens: NDArray[np.float64],
    widths: Sequence[int],
) -> Figure:
    """What the first steps of an epoch are made of: the share of each bucket in a step's useful tokens.

    Args:
        theme: the figure's colors.
        step, bucket, tokens: of each cell; useful tokens.
        widths: upper bound of each bucket in tokens.
    """
    figure, (ax,) = canvas(theme, height=2.7)
    if not len(step):
        note(theme, ax, "the plan has no step")
        return figure
    steps, sums = step_composition(step, bucket, tokens)
    steps, shares = (
        steps[:MAX_STEPS],
        sums[:MAX_STEPS] / np.maximum(1.0, sums[:MAX_STEPS].sum(axis=1, keepdims=True)),
    )
    colors = theme.bucket_colors(shares.shape[1])
    base = np.zeros(len(steps))
    for number in range(shares.shape[1]):
        ax.bar(
            steps,
            shares[:, number],
            bottom=base,
            width=1.0,
            color=colors[number],
            label=f"{widths[number]:,}",
        )
        base += shares[:, number]
    ax.set_ylim(0, 1)
    ax.set_xlim(steps[0] - 0.5, steps[-1] + 0.5)
    ax.grid(False)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    label(theme, ax, x=f"step (the first {len(steps)} of the epoch)", y="share of useful tokens")
    columns = 1 if shares.shape[1] <= 12 else 2
    legend(
        theme,
        ax,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.02),
        title="bucket up to\n(tokens)",
        ncols=columns,
        fontsize=7.5,
    )
    return figure
