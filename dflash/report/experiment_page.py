"""The page of one experiment, from the folders of its stages."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dflash.report.acceptance_pairs import pairs
from dflash.report.acceptance_section import (
    ACCEPTANCE_COLUMNS,
    POSITION_COLUMNS,
    SPEED_COLUMNS,
    acceptance_section,
    decodes_section,
    heldout_section,
)
from dflash.report.batching_section import lengths_section, plan_section
from dflash.report.markup import Markup, element, facts, join, section, table, write_page
from dflash.report.preflight_section import preflight_section
from dflash.report.quantity import compact, count, duration, percent
from dflash.report.sides import flat
from dflash.report.tables import RunRecord, numbers, read_record, read_run, read_table
from dflash.report.training_section import loss_section, machine_section, power, verdict_box
from dflash.report.verdict import judge

POLICY_COLUMNS = ("policy", "padding_efficiency", "variance_between_steps", "lift", "recommended", "reason")


@dataclass(frozen=True)
class Experiment:
    """What a page is made from."""

    name: str
    settings: Mapping[str, Any]
    """Nested settings; sections may be missing if the page was not given them."""
    stages: Mapping[str, Path]
    """Folder of each stage's result."""
    manifests: Mapping[str, Mapping[str, Any]]
    """Manifest of each stage."""
    versions: Mapping[str, str]
    """Versions of the packages that drew the page."""


def draw_experiment_page(experiment: Experiment, folder: Path) -> Path:
    """Draw `report.html` and `figures/` in a folder.

    Raises:
        ValueError: a table is missing or lacks a column; names the file.
    """
    figures = folder / "figures"
    stages = experiment.stages
    boundaries = read_record(
        stages["choose_boundaries"] / "boundaries.json",
        ("widths", "efficiency", "curve", "chosen_by", "notes"),
    )
    quality = read_record(
        stages["build_plan"] / "quality.json", ("plan_id", "policy", "steps", "shapes", "padding_efficiency")
    )
    epoch_columns = ("step", "cell", "bucket", "rows", "width", "useful_tokens", "padded_tokens")
    epoch = read_table(stages["build_plan"] / "epoch-0000.parquet", epoch_columns)
    policies = read_table(stages["build_plan"] / "policies.parquet", POLICY_COLUMNS)
    histogram = read_table(
        stages["measure_lengths"] / "histogram.parquet",
        ("source", "split", "length", "samples", "supervised"),
    )
    run = read_run(stages["fit"])
    acceptance = read_table(stages["evaluate"] / "acceptance.parquet", ACCEPTANCE_COLUMNS)
    positions = read_table(stages["evaluate"] / "positions.parquet", POSITION_COLUMNS)
    speed = read_table(stages["evaluate"] / "measured" / "speed.parquet", SPEED_COLUMNS)
    decodes = read_decodes(stages["evaluate"] / "decodes.jsonl")
    settings = experiment.settings
    verdict = judge(run.history(boundaries["widths"], quality["steps"] or None))
    sections = [
        lengths_section(figures, histogram, boundaries),
        plan_section(figures, epoch, boundaries["widths"], policies, quality),
        loss_section(figures, run, verdict, boundaries["widths"], settings["training"].get("clip_norm")),
        heldout_section(figures, run),
        machine_section(figures, run),
        preflight_section(stages["run_preflight"] / "measured" / "preflight.json"),
        acceptance_section(figures, acceptance, positions, speed),
        decodes_section(decodes, settings["report"]["sample_decodes"]),
        config_section(settings),
        provenance_section(experiment),
    ]
    title = settings["report"]["title"] or experiment.name
    lead = join([verdict_box(verdict), summary(experiment, run, acceptance, quality)])
    page = folder / "report.html"
    write_page(page, f"{title}: experiment report", lead, sections)
    return page


def read_decodes(path: Path) -> list[dict[str, Any]]:
    """Decoded prompts, one JSON object a line.

    Raises:
        ValueError: a line lacks a key.
    """
    decodes = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        decode = json.loads(line)
        lacking = [key for key in ("prompt", "text", "runs", "identical") if key not in decode]
        if lacking:
            raise ValueError(f"{path}, line {number}: no key {lacking[0]!r}")
        decodes.append(decode)
    return decodes


def summary(
    experiment: Experiment, run: RunRecord, acceptance: pl.DataFrame, quality: Mapping[str, Any]
) -> Markup:
    """The facts that a reader wants first."""
    settings = experiment.settings
    seconds = float(np.nansum(numbers(run.metrics, "seconds")))
    useful, padded = (float(numbers(run.metrics, name).sum()) for name in ("useful_tokens", "padded_tokens"))
    _, joules = power(run)
    energy = (
        float(np.nansum(joules * numbers(run.metrics, "useful_tokens")))
        if np.isfinite(joules).any()
        else None
    )
    measured = pairs(acceptance)
    result = measured[0].sentence() if measured else "unknown"
    sources = ", ".join(each["name"] for each in settings["data"]["sources"])
    return facts(
        {
            "target": settings["target"],
            "data": sources,
            "plan": f"{settings['batching']['policy']}, {count(quality['shapes'])} shapes an epoch ({count(shapes_used(run))} used), "
            f"{count(quality['steps'])} steps an epoch, padding efficiency {percent(quality['padding_efficiency'])}",
            "training": f"{count(len(run.metrics))} steps, {compact(useful)} useful of {compact(padded)} padded tokens",
            "result": result,
            "time": f"{duration(seconds)} of steps, {compact(useful / max(seconds, 1e-9))} useful tokens/s",
            "energy": compact(energy, "J"),
        }
    )


def shapes_used(run: RunRecord) -> int:
    """Widths of micro-batches that the training met; each is a shape to compile for, as its rows are fixed."""
    return run.cells.filter(pl.col("rows") > 0)["width"].n_unique()


def config_section(settings: Mapping[str, Any]) -> Markup:
    """Every setting the page knows, as dotted names."""
    rows = [(name, value) for name, value in flat(settings)]
    return section(
        "config",
        "Configuration",
        element("details", element("summary", f"{len(rows)} settings"), table(["setting", "value"], rows)),
    )


def provenance_section(experiment: Experiment) -> Markup:
    """Which results the page shows, and what drew it."""
    stages = [
        (name, manifest["key"][:16], manifest["content"][:16])
        for name, manifest in experiment.manifests.items()
    ]
    return section(
        "provenance",
        "Provenance",
        table(
            ["stage", "key", "content"],
            stages,
            caption="Results shown here; keys and content digests are SHA-256, shortened",
        ),
        table(["package", "version"], list(experiment.versions.items()), caption="Versions"),
    )
