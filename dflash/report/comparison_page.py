"""The page that lays all experiments side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash.report.comparison import MIN_SEEDS, Measured, common_tokens, difference, findings, pareto
from dflash.report.comparison_figures import draw_curves, draw_pareto
from dflash.report.figure_block import block
from dflash.report.markup import Markup, element, section, table, write_page
from dflash.report.quantity import compact, percent
from dflash.report.sides import Side, differing, quantities, read_experiment, same_samples, sides_of
from dflash.report.theme import THEMES

LESS_IS_BETTER = ("held-out loss (nats)",)


def draw_comparison_page(
    settings: Mapping[str, Mapping[str, Any]],
    fits: Mapping[str, Path],
    evaluations: Mapping[str, Path],
    folder: Path,
) -> Path:
    """Draw `comparison.html` and `figures/` in a folder.

    Args:
        settings: of each experiment, nested; the first one is what the others are compared with.
        fits: folder of each experiment's training.
        evaluations: folder of each experiment's evaluation.
        folder: where the page goes.

    Raises:
        ValueError: a table is missing, or a training has no held-out evaluation.
    """
    runs = [read_experiment(name, settings[name], fits[name], evaluations[name]) for name in settings]
    empty = [run.name for run in runs if not len(run.curves.tokens)]
    if empty:
        raise ValueError(
            f"the training of {empty[0]} has no held-out evaluation, so it cannot be compared; "
            "lower training.heldout_interval_steps"
        )
    sides = sides_of(runs)
    figures = folder / "figures"
    common, measured = quantities(sides)
    sections = [
        _differences_section(sides),
        _findings_section(sides, common, measured),
        _curves_section(figures, sides, common),
        _pareto_section(figures, sides, measured),
        _runs_section(sides),
    ]
    lead = element(
        "p", f"{len(runs)} experiments in {len(sides)} sides; a side is what differs in seeds alone."
    )
    page = folder / "comparison.html"
    write_page(page, "Comparison of experiments", lead, sections)
    return page


def _differences_section(sides: Sequence[Side]) -> Markup:
    rows = differing(sides)
    header = ["setting", *(side.name for side in sides)]
    body = table(header, rows) if rows else element("p", "The experiments differ in nothing but seeds.")
    return section("differences", "What differs", body)


def _findings_section(
    sides: Sequence[Side], common: float, measured: Mapping[str, Mapping[str, Measured]]
) -> Markup:
    first = sides[0]
    rows: list[list[object]] = []
    for side in sides[1:]:
        counts = [len(first.runs), len(side.runs)]
        found = {name: difference(values[first.name], values[side.name]) for name, values in measured.items()}
        said = findings(found, counts, LESS_IS_BETTER)
        for name, each in found.items():
            here, there = (
                float(measured[name][each_side.name].values_R.mean()) for each_side in (first, side)
            )
            known = np.isfinite(each.lower)
            span = f"{each.lower:+.3g} to {each.upper:+.3g}" if known else "unknown"
            rows.append(
                [side.name, name, f"{here:.4g}", f"{there:.4g}", f"{each.value:+.3g}", span, said[name]]
            )
    how = element(
        "p",
        f"Each side against {first.name}. Curves are compared at {compact(common)} useful tokens, the most that all reach. Intervals "
        "are 95 % and join the variance of the seeds with that of the prompts, where both are known; held-out losses are paired sample "
        "by sample, as they spread at each run's last evaluation. A claim is made with at least "
        f"{MIN_SEEDS} seeds a side and corrected for the number of quantities (Holm); with fewer, all that is known is that these "
        "models differ.",
        class_="small",
    )
    header = ["side", "quantity", first.name, "this side", "difference", "95 % interval", "finding"]
    runs = [run for side in sides for run in side.runs]
    unpaired = [run.name for run in runs if not run.paired]
    warning = (
        [element("p", f"Unpaired, as the cap of anchors cut some: {', '.join(unpaired)}.")]
        if unpaired
        else []
    )
    if not same_samples(runs):
        warning.append(
            element(
                "p",
                "Held-out losses are not paired, as the runs were evaluated on different samples; their intervals know the seeds alone.",
            )
        )
    body = (
        table(header, rows, numbers=[2, 3, 4, 5])
        if rows
        else element("p", "There is one side; nothing to compare.")
    )
    return section("findings", "Findings", how, body, *warning)


def _curves_section(figures: Path, sides: Sequence[Side], common: float) -> Markup:
    curves = {_label(side): [run.curves for run in side.runs] for side in sides}
    seconds = common_tokens([run.curves.seconds for side in sides for run in side.runs])
    ends = ", ".join(f"{name} {np.mean([run.loss[-1] for run in runs]):.3g}" for name, runs in curves.items())
    by_tokens = block(
        figures,
        "curves-tokens",
        [draw_curves(theme, curves, common, by_time=False) for theme in THEMES],
        alt=f"Held-out loss and teacher-forced acceptance over useful tokens; loss at the end: {ends}.",
        caption="At equal useful tokens: what a policy or setting does to learning. A line is a run; the dashed line is where the table compares.",
    )
    by_time = block(
        figures,
        "curves-time",
        [draw_curves(theme, curves, seconds, by_time=True) for theme in THEMES],
        alt="The same over the seconds of training steps.",
        caption="At equal time: what it does to learning and speed together.",
    )
    return section("curves", "Held-out curves", by_tokens, by_time)


def _label(side: Side) -> str:
    return side.name if len(side.runs) == 1 else f"{side.name} ({len(side.runs)} seeds)"


def _pareto_section(
    figures: Path, sides: Sequence[Side], measured: Mapping[str, Mapping[str, Measured]]
) -> Markup:
    panels = {}
    sentences = []
    speed = measured["useful tokens/s"]
    for name in ("held-out loss (nats)", "decoded acceptance length (tokens)"):
        means = [float(speed[side.name].values_R.mean()) for side in sides]
        quality = [float(measured[name][side.name].values_R.mean()) for side in sides]
        best = pareto(means, quality, less_y=name in LESS_IS_BETTER)
        panels[name] = {
            _label(side): (speed[side.name].values_R, measured[name][side.name].values_R, is_best)
            for side, is_best in zip(sides, best, strict=True)
        }
        unbeaten = ", ".join(side.name for side, is_best in zip(sides, best, strict=True) if is_best)
        sentences.append(f"in {name} no side beats {unbeaten}")
    drawn = block(
        figures,
        "pareto",
        [draw_pareto(theme, panels) for theme in THEMES],
        alt=f"Throughput against held-out loss and against acceptance; {'; '.join(sentences)}.",
        caption="Right is faster. Outlined points are sides that no other beats in both, by their means.",
    )
    return section("pareto", "Throughput against quality", drawn)


def _runs_section(sides: Sequence[Side]) -> Markup:
    rows = [
        (
            run.name,
            side.name,
            compact(run.tokens_per_second),
            percent(run.padding_efficiency),
            f"{run.curves.loss[-1]:.4g}",
            f"{run.curves.acceptance[-1]:.3f}",
            f"{run.acceptance:.3f}",
        )
        for side in sides
        for run in side.runs
    ]
    header = [
        "experiment",
        "side",
        "useful tokens/s",
        "padding efficiency",
        "last held-out loss (nats)",
        "last forced acceptance",
        "decoded acceptance",
    ]
    return section("runs", "All experiments", table(header, rows, numbers=range(2, 7)))
