"""Acceptance as people should read it: up to the target's first loop first, the whole text beside it.

A small model that falls into a loop makes any drafter look good, so the number that counts stops at the first repetition. A
definition that extends another one by "; ..." is its cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from dflash.report.quantity import interval, percent


@dataclass(frozen=True)
class Pair:
    """One drafter at one temperature on one prompt set, as rows of the acceptance table."""

    whole: Mapping[str, Any]
    """Over the whole texts."""
    cut: Mapping[str, Any] | None
    """Up to the first loop; None where the texts were not cut (sampled ones are not)."""

    def sentence(self) -> str:
        """The length to be quoted, with its interval and what it was counted on (tokens per target forward)."""
        whole = _length(self.whole)
        where = (
            f"{self.whole['drafter']}, temperature {self.whole['temperature']:g}, {self.whole['prompt_set']}"
        )
        if self.cut is None:
            return f"acceptance length {whole} tokens per target forward, whole texts ({where})"
        return (
            f"acceptance length {_length(self.cut)} tokens per target forward, counted up to {self.ending()} "
            f"({percent(self.cut['counted_share'])} of the tokens); whole texts {whole} ({where})"
        )

    def ending(self) -> str:
        """Where the cut is, in the words of its definition."""
        assert self.cut is not None
        ending: str = self.cut["definition"].removeprefix(self.whole["definition"] + "; ")
        return ending.removeprefix("up to ")

    def cells(self) -> tuple[str, str, str, str, str, str]:
        """A row of the page's table: drafter, temperature, prompts, cut, share counted, whole."""
        cut, share = (
            ("not cut", "") if self.cut is None else (_length(self.cut), percent(self.cut["counted_share"]))
        )
        row = self.whole
        return row["drafter"], f"{row['temperature']:g}", row["prompt_set"], cut, share, _length(row)


def _length(row: Mapping[str, Any]) -> str:
    return interval(row["value"], row["lower"], row["upper"])


def cut_first(definitions: Sequence[str]) -> list[str]:
    """Definitions in their order, those that cut another one before those that do not."""
    return sorted(
        definitions, key=lambda each: not any(each.startswith(f"{other}; ") for other in definitions)
    )


def pairs(acceptance: pl.DataFrame) -> list[Pair]:
    """The rows of the acceptance table, whole and cut together, in the order of the table."""
    found: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for row in acceptance.iter_rows(named=True):
        found.setdefault((row["drafter"], row["temperature"], row["prompt_set"]), []).append(row)
    made = []
    for rows in found.values():
        *cuts, whole = (
            next(row for row in rows if row["definition"] == definition)
            for definition in cut_first([row["definition"] for row in rows])
        )
        made.append(Pair(whole, cuts[0] if cuts else None))
    return made
