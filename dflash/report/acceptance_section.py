"""The page's parts on what the drafter is worth: acceptance, speed-up, decoded texts with their accepted runs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dflash.report.acceptance_figures import draw_acceptance, draw_heldout, draw_positions
from dflash.report.acceptance_pairs import cut_first, pairs
from dflash.report.figure_block import block
from dflash.report.markup import Markup, element, join, section, table
from dflash.report.quantity import duration
from dflash.report.tables import RunRecord, numbers
from dflash.report.theme import THEMES

MAX_TEXT = 6000
ACCEPTANCE_COLUMNS = (
    "drafter",
    "temperature",
    "prompt_set",
    "definition",
    "value",
    "lower",
    "upper",
    "counted_share",
)
POSITION_COLUMNS = ("drafter", "temperature", "prompt_set", "slot", "conditional")
SPEED_COLUMNS = ("drafter", "temperature", "seconds", "tokens_per_second", "speed_up")


def heldout_section(folder: Path, run: RunRecord) -> Markup:
    """Held-out acceptance and accuracy by slot during training."""
    tokens = run.tokens_at(run.heldout["step"].to_numpy())
    acceptance = numbers(run.heldout, "acceptance")
    slots = [numbers(run.heldout, name) for name in run.slots]
    ends = f"from {acceptance[0]:.2f} to {acceptance[-1]:.2f}" if len(acceptance) else "not measured"
    figures = [draw_heldout(theme, tokens, acceptance, slots) for theme in THEMES]
    drawn = block(
        folder,
        "heldout",
        figures,
        alt=f"Teacher-forced acceptance length on held-out samples, {ends}, and accuracy of {len(slots)} slots over training.",
        caption="The same samples with the same anchors every time. Acceptance length counts the bonus token.",
    )
    return section("heldout", "Held-out samples during training", drawn)


def acceptance_section(
    folder: Path, acceptance: pl.DataFrame, positions: pl.DataFrame, speed: pl.DataFrame
) -> Markup:
    """Acceptance length of all drafters by temperature and prompt set, and by position.

    Args:
        folder: where the figures go.
        acceptance: drafter, temperature, prompt_set, definition, value, lower, upper, counted_share.
        positions: drafter, temperature, prompt_set, slot, conditional.
        speed: drafter, temperature, seconds, tokens_per_second, speed_up.
    """
    parts = []
    definitions = acceptance["definition"].unique(maintain_order=True).to_list()
    for number, definition in enumerate(cut_first(definitions)):
        rows = acceptance.filter(pl.col("definition") == definition)
        groups, bars = _bars(rows)
        alt = "Acceptance length in tokens per target forward. " + "; ".join(
            f"{name}: " + ", ".join(_in_words(groups, values)) for name, values in bars.items()
        )
        figures = [draw_acceptance(theme, groups, bars) for theme in THEMES]
        parts.append(
            block(
                folder,
                f"acceptance-{number}",
                figures,
                alt=alt,
                caption=f"Acceptance length: {definition}. 95 % intervals.",
            )
        )
    lines = {
        f"{drafter}, temperature {temperature:g}, {prompts}": (
            numbers(rows, "slot"),
            numbers(rows, "conditional"),
        )
        for (drafter, temperature, prompts), rows in positions.group_by(
            ["drafter", "temperature", "prompt_set"], maintain_order=True
        )
    }
    if lines:
        figures = [draw_positions(theme, lines) for theme in THEMES]
        alt = "Share of drafted tokens accepted by slot of the block, if reached. " + "; ".join(
            f"{name}: {_shares(values)}" for name, (_, values) in lines.items()
        )
        parts.append(
            block(
                folder,
                "positions",
                figures,
                alt=alt,
                caption="How far into a block the drafter can be trusted.",
            )
        )
    header = ["drafter", "temperature", "prompts", "up to the first loop", "share counted", "whole texts"]
    rows_of_page = [pair.cells() for pair in pairs(acceptance)]
    caption = "Acceptance length in tokens per target forward, 95 % intervals. A target that repeats itself is easy to guess, so what "
    caption += (
        "follows its first loop is left out; the share is of the tokens that target forwards committed."
    )
    lengths = table(header, rows_of_page, caption=caption, numbers=[1, 3, 4, 5])
    return section("acceptance", "Acceptance", *parts, lengths, _speed_table(speed))


def _speed_table(speed: pl.DataFrame) -> Markup:
    rows = [
        (
            row["drafter"],
            f"{row['temperature']:g}",
            duration(row["seconds"]),
            f"{row['tokens_per_second']:.1f}",
            f"{row['speed_up']:.2f}",
        )
        for row in speed.iter_rows(named=True)
    ]
    caption = "Speed against plain decoding of the same prompts in the same run. With a small target, drafting can cost more than it saves."
    return table(
        ["drafter", "temperature", "time", "tokens/s", "speed-up"],
        rows,
        caption=caption,
        numbers=[1, 2, 3, 4],
    )


def _bars(rows: pl.DataFrame) -> tuple[list[str], dict[str, list[Any]]]:
    groups: dict[str, None] = {}
    bars: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in rows.iter_rows(named=True):
        group = f"{row['prompt_set']}\ntemperature {row['temperature']:g}"
        groups[group] = None
        values = [math.nan if row[key] is None else float(row[key]) for key in ("value", "lower", "upper")]
        if not math.isnan(values[0]):
            bars.setdefault(row["drafter"], {})[group] = (values[0], values[1], values[2])
    return list(groups), {name: [known.get(group) for group in groups] for name, known in bars.items()}


def _in_words(groups: Sequence[str], values: Sequence[Any]) -> list[str]:
    return [
        f"{group.replace(chr(10), ', ')} {value[0]:.2f}"
        for group, value in zip(groups, values, strict=True)
        if value is not None
    ]


def _shares(values: np.ndarray) -> str:
    return ", ".join("unknown" if np.isnan(value) else f"{value:.0%}" for value in values)


def decodes_section(decodes: Sequence[dict[str, Any]], limit: int) -> Markup:
    """Decoded prompts; each accepted run has a shade of its own.

    Args:
        decodes: prompt, text, pieces (the text of each run) or runs (tokens of each), identical.
        limit: how many are shown.
    """
    shown = [_decode(number, each) for number, each in enumerate(decodes[:limit], start=1)]
    how = element(
        "p",
        "Each run between two changes of shade was committed by one forward of the target. Long runs are what the drafter earns.",
        class_="small",
    )
    return (
        section("decodes", "Decoded texts", how, *shown)
        if shown
        else section("decodes", "Decoded texts", element("p", "None."))
    )


def _decode(number: int, each: dict[str, Any]) -> Markup:
    runs = each["runs"]
    # The first run is the prefill's token, which no verifying forward committed.
    mean = sum(runs[1:]) / max(1, len(runs) - 1)
    same = "identical to plain decoding" if each["identical"] else "differs from plain decoding"
    head = f"Prompt {number}: {mean:.2f} tokens per target forward, {same}"
    pieces = each.get("pieces")
    body = _colored(pieces) if pieces else element("pre", _cut(each["text"]))
    counts = element("p", "tokens of each run: ", " ".join(map(str, runs[:200])), class_="small")
    return join([element("h3", head), element("pre", element("bdi", _cut(each["prompt"]))), body, counts])


def _colored(pieces: Sequence[str]) -> Markup:
    shown, used = [], 0
    for number, piece in enumerate(pieces):
        if used > MAX_TEXT:
            shown.append(element("span", " [cut]"))
            break
        used += len(piece)
        shown.append(element("span", piece, class_="run on" if number % 2 else "run"))
    return element("pre", element("bdi", *shown))


def _cut(value: str) -> str:
    return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + " [cut]"
