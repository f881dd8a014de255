"""Figures of what the drafter is worth: acceptance over training, by position, by prompt set."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter
from numpy.typing import NDArray

from dflash.report.theme import Theme, canvas, hatches, label, legend, marker_step, note, whole_numbers

Interval = tuple[float, float, float]
"""A value with the lower and the upper end of its interval; the ends are NaN where they are unknown."""


def draw_heldout(
    theme: Theme, tokens: NDArray, acceptance: NDArray, accuracy_by_slot: Sequence[NDArray]
) -> Figure:
    """Teacher-forced acceptance length and accuracy of each slot on the held-out samples, over training.

    Args:
        theme: the figure's colors.
        tokens: useful tokens at each evaluation.
        acceptance: acceptance length, tokens per target forward.
        accuracy_by_slot: for slots 1, 2 ... the share of right tokens at each evaluation.
    """
    figure, (left, right) = canvas(theme, columns=2, height=2.9)
    if not len(tokens):
        note(theme, left, "no held-out evaluation yet")
    every = marker_step(len(tokens))
    left.plot(tokens, acceptance, color=theme.series[0], marker="o", markersize=4, markevery=every)
    colors = theme.bucket_colors(len(accuracy_by_slot))
    for number, values in enumerate(accuracy_by_slot):
        right.plot(
            tokens,
            values,
            color=colors[number],
            linewidth=1.3,
            marker="o",
            markersize=3,
            markevery=every,
            label=str(number + 1),
        )
    for ax in (left, right):
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    label(
        theme,
        left,
        x="useful tokens",
        y="tokens per target forward",
        title="acceptance length, teacher-forced",
    )
    label(theme, right, x="useful tokens", y="right tokens", title="accuracy by slot")
    if accuracy_by_slot:
        legend(theme, right, title="slot", fontsize=7, ncols=2)
    return figure


def draw_acceptance(
    theme: Theme, groups: Sequence[str], bars: Mapping[str, Sequence[Interval | None]]
) -> Figure:
    """Acceptance length of each drafter for each group of prompts, with its interval.

    Args:
        theme: the figure's colors.
        groups: temperature and prompt set.
        bars: drafter -> its acceptance length in each group, None where it was not measured.
    """
    figure, (ax,) = canvas(theme, height=1.0 + 0.24 * max(3, len(groups) * len(bars)))
    thick = 0.8 / max(1, len(bars))
    for number, ((name, values), hatch) in enumerate(zip(bars.items(), hatches(len(bars)), strict=True)):
        places = np.arange(len(groups)) + (number - (len(bars) - 1) / 2) * thick
        known = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        heights = [value[0] for _, value in known]
        whiskers = (
            np.nan_to_num([[value[0] - value[1], value[2] - value[0]] for _, value in known]).reshape(-1, 2).T
        )
        ax.barh(
            [place for place, _ in known],
            heights,
            height=thick * 0.92,
            xerr=np.maximum(whiskers, 0),
            color=theme.series_color(number),
            hatch=hatch,
            edgecolor=theme.background,
            ecolor=theme.ink,
            label=name,
        )
        for place, value in known:
            end = value[0] if np.isnan(value[2]) else value[2]
            ax.annotate(
                f"{value[0]:.2f}",
                (end, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color=theme.ink,
                fontsize=8,
            )
    ax.axvline(1, color=theme.ink, linewidth=0.8, linestyle=(0, (4, 3)))
    ax.set_yticks(range(len(groups)), groups)
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlim(left=0)
    ax.grid(False, axis="y")
    label(theme, ax, x="acceptance length (tokens per target forward; 1 is no gain)", y="")
    legend(theme, ax, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, len(bars)))
    return figure


def draw_positions(theme: Theme, lines: Mapping[str, tuple[NDArray, NDArray]]) -> Figure:
    """How likely the token of each slot is accepted, given that all before it were.

    Args:
        theme: the figure's colors.
        lines: name -> slots, and the share accepted.
    """
    figure, (ax,) = canvas(theme)
    for number, (name, (slots, share)) in enumerate(lines.items()):
        style = theme.line_style(number)
        ax.plot(
            slots,
            share,
            color=theme.series_color(number),
            linestyle=style,
            marker="os^Dv"[number % 5],
            markersize=5,
            label=name,
        )
    ax.set_ylim(0, 1)
    whole_numbers(ax)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    label(theme, ax, x="slot of the block (1 follows the anchor)", y="accepted, if reached")
    legend(
        theme,
        ax,
        fontsize=8,
        loc="lower left" if len(lines) <= 4 else "upper left",
        bbox_to_anchor=None if len(lines) <= 4 else (0.0, -0.18),
        ncols=2,
    )
    return figure
