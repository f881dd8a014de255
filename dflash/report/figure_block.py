"""A figure drawn in both themes, saved beside the page and embedded in it."""

from pathlib import Path

from matplotlib.figure import Figure

from dflash.report.markup import Markup, chart
from dflash.report.theme import DARK, LIGHT, save


def block(folder: Path, stem: str, figures: list[Figure], *, alt: str, caption: str) -> Markup:
    """Save a figure of each theme as `STEM-light` and `STEM-dark`, SVG and PNG, and embed it.

    Args:
        folder: where the files go.
        stem: their name.
        figures: the light and the dark one.
        alt: what the figure shows, for who cannot see it.
        caption: how to read it.
    """
    light, dark = figures
    return chart(
        save(light, folder, f"{stem}-{LIGHT.name}"),
        save(dark, folder, f"{stem}-{DARK.name}"),
        alt=alt,
        caption=caption,
    )
