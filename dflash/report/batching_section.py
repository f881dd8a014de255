"""The page's parts on lengths, boundaries, policies and steps."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dflash.report.batching_figures import draw_bucket_curve, draw_composition, draw_lengths, draw_policies
from dflash.report.figure_block import block
from dflash.report.markup import Markup, element, section, table
from dflash.report.quantity import count, percent
from dflash.report.tables import bucket_of
from dflash.report.theme import THEMES

RULES = {
    "equal_width": "equal widths",
    "quantile": "equal samples (quantiles)",
    "equal_token": "equal tokens",
}

NUMBERS = {
    "num_samples": "samples of the plan",
    "num_dropped": "samples left out",
    "micro_batches": "micro-batches of an epoch",
    "steps": "optimizer steps of an epoch",
    "samples": "samples of an epoch",
    "useful_tokens": "useful tokens of an epoch",
    "padded_tokens": "tokens of an epoch with padding",
    "padding_efficiency": "padding efficiency (useful / padded tokens, at most 1)",
    "fill": "memory filled (padded tokens / tokens that fit, at most 1)",
    "utilization": "memory used (useful tokens / tokens that fit, at most 1)",
    "work_efficiency": "target work without padding / with it (at most 1)",
    "over_budget": "micro-batches that break a budget (should be 0)",
    "single_rows_above_budget": "single samples that alone exceed the budget",
    "largest_micro_batch_tokens": "largest micro-batch (padded tokens)",
    "shapes": "shapes of micro-batches",
    "anchors": "anchors of an epoch",
    "coverage": "share of the samples that occur (should be 1)",
    "multiplicity": "most times that a sample occurs in an epoch (should be 1)",
    "repeat_rate": "partners met again in the next epoch (share of pairs)",
    "chance": "the same by chance (share of pairs)",
    "lift": "the first over the second (1 = as by chance)",
    "variance_between_batches": "share of the variance of length between micro-batches (0 to 1)",
    "variance_between_steps": "share of the variance of length between steps (0 to 1)",
    "spread_tokens": "useful tokens of a step (standard deviation / mean)",
    "spread_samples": "samples of a step (standard deviation / mean)",
    "spread_anchors": "anchors of a step (standard deviation / mean)",
    "autocorrelation_band": "autocorrelation of white noise, 95 % within (plus or minus)",
}
"""What the plan's numbers are called, with their units."""


def lengths_section(folder: Path, histogram: pl.DataFrame, boundaries: dict[str, Any]) -> Markup:
    """Lengths of the training split, the chosen boundaries and what others would cost.

    Args:
        folder: where the figures go.
        histogram: source, split, length, samples, supervised.
        boundaries: widths, efficiency, chosen_by, notes, curve.
    """
    train = histogram.filter(pl.col("split") == "train")
    if not len(train):
        return section("lengths", "Lengths and boundaries", element("p", "There is no training sample."))
    by_length = train.group_by("length").agg(pl.col("samples").sum()).sort("length")
    lengths = by_length["length"].cast(pl.Int64).to_numpy()
    samples = by_length["samples"].cast(pl.Int64).to_numpy()
    widths = boundaries["widths"]
    cumulative = np.cumsum(samples)
    median = int(lengths[np.searchsorted(cumulative, cumulative[-1] / 2)])
    histogram_block = block(
        folder,
        "lengths",
        [draw_lengths(theme, lengths, samples, widths) for theme in THEMES],
        alt=f"Histogram of {count(samples.sum())} sample lengths from {lengths.min()} to {lengths.max():,} tokens, median {median:,}, "
        f"with the upper bounds of {len(widths)} buckets: {', '.join(map(str, widths))}.",
        caption="Upper panel: where the samples are. Lower panel: where the tokens are. A sample is padded to the next dashed line.",
    )
    return section(
        "lengths", "Lengths and boundaries", histogram_block, *_curve(folder, boundaries), _sources(histogram)
    )


def _curve(folder: Path, boundaries: dict[str, Any]) -> list[Markup]:
    curve, chosen = boundaries["curve"], len(boundaries["widths"])
    if not curve:
        return []
    here = next((row for row in curve if row["num_buckets"] == chosen), curve[-1])
    others = {name: here[key] for key, name in RULES.items()}
    efficiency = boundaries["efficiency"]
    alt = (
        f"Padding efficiency over the number of buckets; {chosen} buckets reach {percent(efficiency)}; with as many, "
        + ", ".join(f"{name} reach {percent(value)}" for name, value in others.items())
    )
    figures = [
        draw_bucket_curve(
            theme, [row["num_buckets"] for row in curve], [row["efficiency"] for row in curve], chosen, others
        )
        for theme in THEMES
    ]
    caption = f"The number of buckets was chosen by {boundaries['chosen_by']}. More shapes pad less; each costs a compilation and memory."
    notes = [element("p", note, class_="small") for note in boundaries["notes"]]
    return [block(folder, "buckets", figures, alt=alt + ".", caption=caption), *notes]


def _sources(histogram: pl.DataFrame) -> Markup:
    grouped = (
        histogram.group_by("source", "split", maintain_order=True)
        .agg(
            pl.col("samples").sum(),
            (pl.col("length").cast(pl.Int64) * pl.col("samples")).sum().alias("tokens"),
            pl.col("supervised").sum(),
            pl.col("length").max().alias("longest"),
        )
        .sort("source", "split")
    )
    rows = [
        (row["source"], row["split"], count(row["samples"]), count(row["tokens"]), percent(row["supervised"] / max(1, row["tokens"])),
         count(row["longest"]))
        for row in grouped.iter_rows(named=True)
    ]  # fmt: skip
    header = ["source", "split", "samples", "tokens", "supervised", "longest (tokens)"]
    return table(header, rows, caption="Samples by source and split", numbers=range(2, 6))


def plan_section(
    folder: Path, epoch: pl.DataFrame, widths: list[int], policies: pl.DataFrame, quality: dict[str, Any]
) -> Markup:
    """What the plan's steps are made of, and what each policy would cost on this data.

    Args:
        folder: where the figures go.
        epoch: step, cell, bucket, rows, width, useful_tokens, padded_tokens of the first epoch.
        widths: upper bounds of the buckets.
        policies: a row per policy: policy, padding_efficiency, variance_between_steps, lift, recommended, reason.
        quality: the numbers of the plan.
    """
    chosen = quality["policy"]
    full = epoch.filter(pl.col("rows") > 0)
    step, tokens = full["step"].to_numpy(), full["useful_tokens"].cast(pl.Float64).to_numpy()
    bucket, names = bucket_of(full, widths), list(widths)
    composition = block(
        folder,
        "composition",
        [draw_composition(theme, step, bucket, tokens, names) for theme in THEMES],
        alt=f"Stacked bars: the share of each of {len(names)} buckets in the useful tokens of the first steps of an epoch.",
        caption="Each bar is one optimizer step. Steps that look alike mix all lengths; a drift from one color to another means that "
        "the drafter sees short and long samples in turn.",
    )
    names_of = policies["policy"].to_list()
    panels = {
        "padding efficiency\n(useful / padded)": policies["padding_efficiency"].to_list(),
        "share of length variance\nbetween steps": policies["variance_between_steps"].to_list(),
        "partners met again\n(1 = chance)": policies["lift"].to_list(),
    }
    costs = block(
        folder,
        "policies",
        [draw_policies(theme, names_of, chosen, panels) for theme in THEMES],
        alt="; ".join(
            f"{title}: " + ", ".join(f"{n} {v}" for n, v in zip(names_of, vs, strict=True))
            for title, vs in panels.items()
        ),
        caption=f"What each policy would give on this data; the plan uses {chosen}. Left: higher is better. Middle and right: lower is "
        "better; a share near 1 between steps means that steps do not mix lengths.",
    )
    advised = policies.filter(pl.col("recommended"))
    advice = [
        element("p", f"Recommended: {row['policy']}. {row['reason']}.")
        for row in advised.iter_rows(named=True)
    ]
    return section("plan", "The batch plan", composition, costs, *advice, _numbers_of(quality))


def _numbers_of(quality: dict[str, Any]) -> Markup:
    """The plan's own numbers; tables inside them have figures of their own."""
    known = [(name, value) for name, value in quality.items() if isinstance(value, int | float)]
    rows = [
        (
            NUMBERS.get(name, name.replace("_", " ")),
            count(value) if isinstance(value, int) else f"{value:.3g}",
        )
        for name, value in known
    ]
    return table(
        ["quantity", "value"], rows, caption=f"Numbers of the plan {quality['plan_id'][:16]}", numbers=[1]
    )
