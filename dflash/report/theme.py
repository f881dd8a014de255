"""How figures look: two themes, one palette that the color-blind can tell apart, styled axes, saved files.

Colors are those of Okabe and Ito (Color Universal Design, 2008), lightened where the background is dark. Series also differ in
line style, and buckets take the colors of `cividis`, whose lightness grows evenly.
"""

import base64
import io
import os
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

WIDTH_INCHES = 7.0
MAX_BINS = 600
"""Points of a long series: about one for every two pixels of a page, so that a run of weeks fits in a page of 10 MB."""
MAX_MARKERS = 40


@dataclass(frozen=True)
class Theme:
    """The colors of a figure."""

    name: str
    background: str
    ink: str
    """Text and the outlines of data."""
    faint: str
    """Grid lines, frames, reference lines."""
    series: tuple[str, ...]
    """Colors of series, in order."""
    bad: str
    """What needs attention."""
    shades: tuple[float, float]
    """The part of `cividis` that stands out from the background."""

    def series_color(self, number: int) -> str:
        """The color of a series; they repeat after the last."""
        return self.series[number % len(self.series)]

    def line_style(self, number: int) -> str:
        """The line style of a series; it changes when the colors repeat."""
        return ("-", "--", ":", "-.")[(number // len(self.series)) % 4]

    def bucket_colors(self, num_buckets: int) -> list[Any]:
        """One color a bucket, from narrow to wide."""
        shades = matplotlib.colormaps["cividis"]
        low, high = self.shades
        return [shades(low + (high - low) * k / max(1, num_buckets - 1)) for k in range(num_buckets)]


LIGHT = Theme(
    name="light",
    background="#ffffff",
    ink="#1c2128",
    faint="#c9ced6",
    series=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    bad="#b3261e",
    shades=(0.0, 0.9),
)
DARK = Theme(
    name="dark",
    background="#171a20",
    ink="#e6e8ec",
    faint="#454b56",
    series=("#56b4e9", "#ff9d5c", "#35c9a0", "#e3a3c6", "#9ec9ff", "#f0e442"),
    bad="#ff8a80",
    shades=(0.3, 1.0),
)
THEMES = (LIGHT, DARK)


def canvas(
    theme: Theme, *, rows: int = 1, columns: int = 1, height: float = 2.9, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with styled axes.

    Args:
        theme: its colors.
        rows, columns: its panels.
        height: of a row of panels, in inches.
        options: passed to `Figure.subplots`.

    Returns:
        The figure and its axes, row by row.
    """
    figure = Figure(figsize=(WIDTH_INCHES, height * rows), layout="constrained", facecolor=theme.background)
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for ax in axes:
        ax.set_facecolor(theme.background)
        ax.tick_params(which="both", colors=theme.ink, labelsize=9)
        ax.grid(True, color=theme.faint, linewidth=0.5, alpha=0.7)
        ax.set_axisbelow(True)
        for side, spine in ax.spines.items():
            spine.set_visible(side in {"left", "bottom"})
            spine.set_color(theme.faint)
        ax.set_prop_cycle(color=list(theme.series))
    return figure, axes


def label(theme: Theme, ax: Axes, *, x: str, y: str, title: str = "") -> None:
    """Name the axes, each with its unit, and the panel."""
    ax.set_xlabel(x, color=theme.ink, fontsize=9.5)
    ax.set_ylabel(y, color=theme.ink, fontsize=9.5)
    if title:
        ax.set_title(title, color=theme.ink, fontsize=10, loc="left")


def legend(theme: Theme, ax: Axes, **options: Any) -> None:
    """A legend without a frame, in the theme's ink."""
    settings = {"frameon": False, "fontsize": 8.5, "labelcolor": theme.ink} | options
    drawn = ax.legend(**settings)
    drawn.get_title().set(color=theme.ink, fontsize=8)


def whole_numbers(ax: Axes) -> None:
    """Ticks of the x axis at whole numbers only."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def note(theme: Theme, ax: Axes, text: str) -> None:
    """Say in an empty panel why it is empty."""
    ax.set_yticks([])
    ax.text(
        0.5,
        0.5,
        text,
        transform=ax.transAxes,
        ha="center",
        va="center",
        color=theme.ink,
        fontsize=10,
        wrap=True,
    )


def hatches(count: int) -> list[str]:
    """Fill patterns of bars that stand beside each other."""
    return list(islice(cycle(("", "///", "...", "xx")), count))


def marker_step(count: int) -> int:
    """Every how many of a line's points get a marker, so that no more than 40 crowd it."""
    return max(1, -(-count // MAX_MARKERS))


def save(figure: Figure, folder: Path, stem: str) -> str:
    """Write a figure as SVG and PNG, each atomically and the same bytes for the same figure.

    Returns:
        The SVG as a `data:` address, for a page that needs no other file.
    """
    drawing, picture = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": stem, "text.parse_math": False}):
        # `Figure.savefig` would draw each format twice and lay out each time.
        FigureCanvasSVG(figure).print_svg(drawing, metadata={"Date": None})
        figure.set_layout_engine("none")
        figure.set_dpi(144)
        FigureCanvasAgg(figure).print_png(picture, metadata={"Software": None})
    for suffix, content in ((".svg", drawing.getvalue()), (".png", picture.getvalue())):
        write_bytes(folder / (stem + suffix), content)
    return "data:image/svg+xml;base64," + base64.b64encode(drawing.getvalue()).decode("ascii")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    os.replace(part, path)


def line_bins(length: int, limit: int = MAX_BINS) -> list[slice]:
    """Cut a long series into at most `limit` runs of equal length, so that a figure's size is bounded."""
    size = max(1, -(-length // limit))
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
