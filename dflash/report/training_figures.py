"""Figures of a training run: loss, gradient, throughput, balance, energy."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, PercentFormatter
from numpy.typing import NDArray

from dflash.report.theme import MAX_BINS, Theme, canvas, hatches, label, legend, line_bins, marker_step, note


def draw_envelope(ax: Axes, x: NDArray, y: NDArray, color: str, name: str, limit: int = MAX_BINS) -> None:
    """A jumpy series as the line of its mean with the range from its least to its greatest value, a bin at a time.

    Up to `limit` points every bin is one value. Bins without a finite value leave a gap.
    """
    cuts = [cut for cut in line_bins(len(y), limit) if np.isfinite(y[cut]).any()]
    center = np.array([np.mean(x[cut]) for cut in cuts])
    middle = np.array([np.nanmean(np.where(np.isfinite(y[cut]), y[cut], np.nan)) for cut in cuts])
    ax.plot(center, middle, color=color, linewidth=0.8, alpha=0.75, label=name)
    if len(cuts) < len(y):
        finite = [y[cut][np.isfinite(y[cut])] for cut in cuts]
        ax.fill_between(
            center, [v.min() for v in finite], [v.max() for v in finite], color=color, alpha=0.25, linewidth=0
        )


def draw_loss(
    theme: Theme,
    tokens: NDArray,
    loss: NDArray,
    adjusted: tuple[NDArray, NDArray],
    heldout: tuple[NDArray, NDArray],
    skipped: NDArray,
) -> Figure:
    """The loss of every step, without what the steps' composition explains, and on held-out samples.

    Args:
        theme: the figure's colors.
        tokens, loss: useful tokens up to and with a step; its loss in nats per unit of weight.
        adjusted: useful tokens and the composition-adjusted loss of the verdict's segments.
        heldout: useful tokens and held-out loss.
        skipped: useful tokens at steps that were skipped.
    """
    figure, (ax,) = canvas(theme, height=3.2)
    draw_envelope(ax, tokens, loss, theme.series[4], "each step")
    ax.plot(*adjusted, color=theme.series[0], linewidth=2.0, label="without the composition of the steps")
    if len(heldout[0]):
        ax.plot(
            *heldout,
            color=theme.series[1],
            marker="o",
            markersize=4,
            markevery=marker_step(len(heldout[0])),
            linewidth=1.4,
            label="held-out samples",
        )
    for number, place in enumerate(skipped[:200]):
        ax.axvline(place, color=theme.bad, linewidth=0.9, label="skipped step" if number == 0 else None)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    label(theme, ax, x="useful tokens", y="loss (nats per unit of weight)")
    legend(theme, ax, loc="upper right")
    return figure


def draw_bucket_trends(
    theme: Theme, names: Sequence[str], slope: Sequence[float], lower: Sequence[float], upper: Sequence[float]
) -> Figure:
    """The trend of the loss inside each bucket over the last part of the run, with 95 % intervals.

    Args:
        theme: the figure's colors.
        names: the buckets.
        slope, lower, upper: change of the loss in nats over 1,000 steps; NaN where a bucket had too few cells.
    """
    figure, (ax,) = canvas(theme, height=0.9 + 0.26 * max(2, len(names)))
    for place, (middle, low, high) in enumerate(zip(slope, lower, upper, strict=True)):
        if not np.isfinite(middle):
            ax.annotate("too few cells", (0, place), color=theme.ink, fontsize=8, va="center")
            continue
        color = theme.bad if low > 0 else theme.series[0]
        ax.plot([low, high], [place, place], color=color, linewidth=2)
        ax.plot([middle], [place], marker="D" if low > 0 else "o", color=color)
    ax.axvline(0, color=theme.ink, linewidth=0.8)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    label(theme, ax, x="trend of the loss (nats per 1,000 steps; left of zero it falls)", y="bucket")
    return figure


def draw_gradient(
    theme: Theme, step: NDArray, norm: NDArray, learning_rate: NDArray, clip: float | None
) -> Figure:
    """The gradient's norm before clipping, and the learning rate."""
    figure, (upper, lower) = canvas(theme, rows=2, height=1.7, sharex=True)
    positive = np.where(norm > 0, norm, np.nan)
    draw_envelope(upper, step, positive, theme.series[0], "before clipping")
    if np.isfinite(positive).any():
        upper.set_yscale("log")
        upper.yaxis.set_major_formatter("{x:g}")
        # Over less than a decade the powers of ten alone would leave an axis with one number, or none.
        narrow = np.nanmax(positive) < 10 * np.nanmin(positive)
        upper.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5) if narrow else "auto"))
        upper.yaxis.set_minor_formatter("{x:g}" if narrow else "")
    if clip is not None:
        upper.axhline(
            clip, color=theme.ink, linewidth=0.8, linestyle=(0, (4, 3)), label=f"clipped to {clip:g}"
        )
    label(theme, upper, x="", y="gradient norm")
    legend(theme, upper, loc="upper right", ncols=2)
    lower.plot(step, learning_rate, color=theme.series[2])
    label(theme, lower, x="step", y="learning rate")
    return figure


def draw_throughput(theme: Theme, step: NDArray, useful_rate: NDArray, padded_rate: NDArray) -> Figure:
    """Useful and padded tokens per second over the run.

    Args:
        theme: the figure's colors.
        step: of each value.
        useful_rate, padded_rate: tokens per second.
    """
    figure, (ax,) = canvas(theme, height=2.6)
    draw_envelope(ax, step, padded_rate, theme.series[1], "padded tokens/s")
    draw_envelope(ax, step, useful_rate, theme.series[0], "useful tokens/s")
    ax.set_ylim(0, 1.25 * max(1.0, float(np.nanmax(padded_rate, initial=0.0))))
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    label(theme, ax, x="step", y="tokens per second")
    legend(theme, ax, loc="upper left", ncols=2)
    return figure


def draw_balance(theme: Theme, names: Sequence[str], shares: Mapping[str, Sequence[float]]) -> Figure:
    """How each rank spent its time.

    Args:
        theme: the figure's colors.
        names: the ranks with their roles.
        shares: what a rank did -> the share of its time, a value a rank.
    """
    figure, (ax,) = canvas(theme, height=1.1 + 0.3 * max(1, len(names)))
    base = np.zeros(len(names))
    for number, ((name, values), hatch) in enumerate(zip(shares.items(), hatches(len(shares)), strict=True)):
        ax.barh(
            range(len(names)),
            values,
            left=base,
            label=name,
            color=theme.series_color(number),
            hatch=hatch,
            edgecolor=theme.background,
        )
        base += np.asarray(values)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.grid(False, axis="y")
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    label(theme, ax, x="share of the rank's time", y="")
    legend(theme, ax, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(shares))
    return figure


def draw_energy(
    theme: Theme, step: NDArray, power_watts: Mapping[str, NDArray], joules_per_token: NDArray
) -> Figure:
    """Power of each rank, and energy per useful token; says so where no counter was readable.

    Args:
        theme: the figure's colors.
        step: of each value.
        power_watts: rank -> mean power of a step in watts; NaN where unknown.
        joules_per_token: energy of all ranks per useful token; NaN where unknown.
    """
    figure, (upper, lower) = canvas(theme, rows=2, height=1.7, sharex=True)
    known = {name: watts for name, watts in power_watts.items() if np.isfinite(watts).any()}
    # Many ranks share what a figure may weigh.
    limit = max(MAX_BINS // 6, min(MAX_BINS, 4 * MAX_BINS // max(1, len(known))))
    for number, (name, watts) in enumerate(known.items()):
        draw_envelope(upper, step, watts, theme.series_color(number), name, limit)
    if known:
        legend(theme, upper, loc="upper right", ncols=4)
        upper.set_ylim(0, 1.3 * max(float(np.nanmax(watts)) for watts in known.values()))
    else:
        note(theme, upper, "power is unknown: no energy counter was readable")
    if np.isfinite(joules_per_token).any():
        draw_envelope(lower, step, joules_per_token, theme.series[0], "all ranks")
        lower.set_ylim(0, 1.2 * float(np.nanmax(joules_per_token)))
    else:
        note(theme, lower, "energy per token is unknown")
    label(theme, upper, x="", y="power (W)")
    label(theme, lower, x="step", y="J per useful token")
    return figure
