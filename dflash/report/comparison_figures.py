"""Figures that lay experiments side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from dflash.report.theme import Theme, canvas, label, legend, marker_step

MARKERS = "os^Dv<>P"


@dataclass(frozen=True)
class Curves:
    """Held-out curves of one run."""

    tokens: NDArray[np.float64]
    seconds: NDArray[np.float64]
    loss: NDArray[np.float64]
    acceptance: NDArray[np.float64]


def draw_curves(
    theme: Theme, sides: Mapping[str, Sequence[Curves]], common: float, *, by_time: bool
) -> Figure:
    """Held-out loss and acceptance of every run over useful tokens, or over time.

    Args:
        theme: the figure's colors.
        sides: the runs of each side; runs of a side share a color.
        common: the most tokens (seconds) that all reach: where they are compared.
        by_time: over seconds instead of useful tokens.
    """
    figure, axes = canvas(theme, columns=2, height=3.0)
    for number, (name, runs) in enumerate(sides.items()):
        for place, run in enumerate(runs):
            x = run.seconds if by_time else run.tokens
            look: dict[str, Any] = {
                "color": theme.series_color(number),
                "linestyle": theme.line_style(number),
                "marker": MARKERS[number % len(MARKERS)],
                "markersize": 3.5,
                "markevery": marker_step(len(x)),
                "linewidth": 1.2,
                "label": name if place == 0 else None,
            }
            axes[0].plot(x, run.loss, **look)
            axes[1].plot(x, run.acceptance, **look)
    for ax, y in zip(axes, ("held-out loss (nats)", "acceptance length (tokens)"), strict=True):
        ax.axvline(common, color=theme.ink, linewidth=0.8, linestyle=(0, (4, 3)))
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        label(theme, ax, x="time of steps (s)" if by_time else "useful tokens", y=y)
    legend(theme, axes[0], loc="upper right", fontsize=8)
    return figure


def draw_pareto(theme: Theme, panels: Mapping[str, Mapping[str, tuple[NDArray, NDArray, bool]]]) -> Figure:
    """Throughput against quality, a point a run; sides that no other beats are outlined.

    Args:
        theme: the figure's colors.
        panels: name of the quality with its unit -> side -> useful tokens/s of its runs, their quality, and whether no side beats it.
    """
    figure, axes = canvas(theme, columns=len(panels), height=3.0)
    for ax, (title, sides) in zip(axes, panels.items(), strict=True):
        for number, (name, (speed, quality, best)) in enumerate(sides.items()):
            ax.plot(
                speed,
                quality,
                linestyle="",
                marker=MARKERS[number % len(MARKERS)],
                markersize=8 if best else 5.5,
                color=theme.series_color(number),
                markeredgecolor=theme.ink if best else theme.series_color(number),
                markeredgewidth=1.4 if best else 0.5,
                label=name,
            )
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        label(theme, ax, x="useful tokens/s", y=title)
    legend(theme, axes[0], loc="best", fontsize=8)
    return figure
