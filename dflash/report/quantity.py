"""Numbers as people read them, each with its unit."""

import math


def count(value: float | None) -> str:
    """A whole number with separators; "unknown" where it is not known."""
    return "unknown" if value is None or not math.isfinite(value) else f"{value:,.0f}"


def compact(value: float | None, unit: str = "") -> str:
    """Three digits and a prefix: 12.3k, 4.56M."""
    if value is None or not math.isfinite(value):
        return "unknown"
    size = abs(value)
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g}{unit and ' '}{letter}{unit}"
    return f"{value:.3g}{unit and ' '}{unit}"


def percent(value: float | None) -> str:
    """A share as a percentage."""
    return "unknown" if value is None or not math.isfinite(value) else f"{value:.1%}"


def duration(seconds: float | None) -> str:
    """Seconds, minutes, hours or days."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 99:
        return f"{seconds / 60:.1f} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{seconds / 86400:.1f} d"


def interval(value: float | None, lower: float | None, upper: float | None, digits: int = 2) -> str:
    """A value with its interval, or alone where the interval is unknown."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if lower is None or upper is None or not math.isfinite(lower) or not math.isfinite(upper):
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} ({lower:.{digits}f} to {upper:.{digits}f})"
