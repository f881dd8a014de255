"""A look at the data: counts, lengths, what was rejected and why, and samples with their supervised text marked.

The page reads four files that the data floor writes: `sources.parquet` (source, split, samples, tokens, supervised), `lengths.parquet`
(source, split, length, samples), `rejected.parquet` (source, reason, rows, example) and `samples.jsonl` (source, split,
pieces: a list of [text, supervised]).
"""

import json
from pathlib import Path
from typing import Any

import polars as pl

from dflash.report.batching_figures import draw_lengths
from dflash.report.figure_block import block
from dflash.report.markup import Markup, element, facts, join, section, table, write_page
from dflash.report.quantity import count, percent
from dflash.report.tables import read_table
from dflash.report.theme import THEMES

MAX_TEXT = 4000
SOURCE_COLUMNS = ("source", "split", "samples", "tokens", "supervised")
LENGTH_COLUMNS = ("source", "split", "length", "samples")
REJECTED_COLUMNS = ("source", "reason", "rows", "example")


def draw_data_page(tables: Path, folder: Path) -> Path:
    """Draw `data.html` and `figures/` in a folder.

    Args:
        tables: folder of the tables.
        folder: where the page goes.

    Raises:
        ValueError: a table is missing or lacks a column; names the file.
    """
    sources = read_table(tables / "sources.parquet", SOURCE_COLUMNS)
    lengths = read_table(tables / "lengths.parquet", LENGTH_COLUMNS)
    rejected = read_table(tables / "rejected.parquet", REJECTED_COLUMNS)
    samples = [
        json.loads(line) for line in (tables / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    page = folder / "data.html"
    totals = {name: int(sources[name].sum()) for name in ("samples", "tokens", "supervised")}
    lead = facts(
        {
            "samples": count(totals["samples"]),
            "tokens": count(totals["tokens"]),
            "supervised": f"{count(totals['supervised'])} tokens, {percent(totals['supervised'] / max(1, totals['tokens']))}",
            "rejected": f"{count(int(rejected['rows'].sum()))} rows",
        }
    )
    sections = [
        _sources_section(sources),
        _lengths_section(folder / "figures", lengths),
        _rejected_section(rejected),
        _samples_section(samples),
    ]
    write_page(page, "A look at the data", lead, sections)
    return page


def _sources_section(sources: pl.DataFrame) -> Markup:
    rows = [
        (
            row["source"],
            row["split"],
            count(row["samples"]),
            count(row["tokens"]),
            f"{row['tokens'] / max(1, row['samples']):.1f}",
            percent(row["supervised"] / max(1, row["tokens"])),
        )
        for row in sources.iter_rows(named=True)
    ]
    header = ["source", "split", "samples", "tokens", "mean length (tokens)", "supervised"]
    return section("sources", "Sources", table(header, rows, numbers=range(2, 6)))


def _lengths_section(figures: Path, lengths: pl.DataFrame) -> Markup:
    parts = []
    for number, ((source,), rows) in enumerate(lengths.group_by(["source"], maintain_order=True)):
        summed = (
            rows.group_by("length").agg(pl.col("samples").sum()).filter(pl.col("length") > 0).sort("length")
        )
        if not len(summed):
            continue
        length, samples = (summed[name].cast(pl.Int64).to_numpy() for name in ("length", "samples"))
        drawn = block(
            figures,
            f"lengths-{number}",
            [draw_lengths(theme, length, samples, []) for theme in THEMES],
            alt=f"Histogram of the lengths of {count(float(samples.sum()))} samples of {source}, {length[0]} to {length[-1]:,} tokens.",
            caption="Upper panel: where the samples are. Lower panel: where the tokens are.",
        )
        parts += [element("h3", source), drawn]
    return section("lengths", "Lengths", *(parts or [element("p", "There is no sample.")]))


def _rejected_section(rejected: pl.DataFrame) -> Markup:
    if not len(rejected):
        return section("rejected", "Rejected rows", element("p", "None."))
    rows = [
        (row["source"], row["reason"], count(row["rows"]), _cut(row["example"] or "", 300))
        for row in rejected.sort("rows", descending=True, maintain_order=True).iter_rows(named=True)
    ]
    return section(
        "rejected", "Rejected rows", table(["source", "reason", "rows", "an example"], rows, numbers=[2])
    )


def _samples_section(samples: list[dict[str, Any]]) -> Markup:
    how = element("p", "Shaded: text that the drafter is trained on. The rest is only read.", class_="small")
    return section(
        "samples", "Samples", how, *(_sample(number, each) for number, each in enumerate(samples, start=1))
    )


def _sample(number: int, sample: dict[str, Any]) -> Markup:
    shown: list[Markup] = []
    left = MAX_TEXT
    for text, supervised in sample["pieces"]:
        shown.append(element("span", _cut(text, left), class_="run on" if supervised else "plain"))
        left -= len(text)
        if left <= 0:
            break
    head = element("h3", f"Sample {number}: {sample['source']}, {sample['split']}")
    return join([head, element("pre", element("bdi", *shown))])


def _cut(value: str, limit: int) -> str:
    return value if len(value) <= limit else value[:limit] + " [cut]"
