"""Numbers as people read them."""

import math

import pytest

from dflash.report.quantity import compact, count, duration, interval, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (12_345, "12.3k"),
        (4.56e6, "4.56M"),
        (3e9, "3G"),
        (None, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_compact(value: float | None, text: str) -> None:
    assert compact(value) == text


def test_units() -> None:
    assert (compact(2e6, "B"), compact(5, "J"), compact(0.25)) == ("2 MB", "5 J", "0.25")
    assert (count(1234567), count(None), percent(0.1234), percent(math.inf)) == (
        "1,234,567",
        "unknown",
        "12.3%",
        "unknown",
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.26, "0.3 s"),
        (99, "99.0 s"),
        (100, "1.7 min"),
        (7260, "2 h 01 min"),
        (864_000, "10.0 d"),
        (None, "unknown"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_interval() -> None:
    assert (
        interval(2.345, 2.1, 2.6) == "2.35 (2.10 to 2.60)"
        or interval(2.345, 2.1, 2.6) == "2.34 (2.10 to 2.60)"
    )
    assert (interval(2.0, None, 3.0), interval(None, 1, 2)) == ("2.00", "unknown")
