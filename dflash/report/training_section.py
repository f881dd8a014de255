"""The page's parts on the run: the verdict on its loss, throughput, balance and energy."""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.report.figure_block import block
from dflash.report.markup import Markup, element, join, section, table
from dflash.report.quantity import compact, count, duration, interval, percent
from dflash.report.rates import service_rates
from dflash.report.tables import RunRecord, numbers
from dflash.report.theme import THEMES
from dflash.report.training_figures import (
    draw_balance,
    draw_bucket_trends,
    draw_energy,
    draw_gradient,
    draw_loss,
    draw_throughput,
)
from dflash.report.utilization import utilization
from dflash.report.verdict import Verdict

ROLES = {"both": "target and drafter", "target": "targets", "drafter": "drafters"}
"""What the ranks of a role are called together."""


def verdict_box(verdict: Verdict) -> Markup:
    """The judgement in a sentence, with a word and not a color alone."""
    return element(
        "p",
        element("b", verdict.level),
        " (",
        verdict.cause,
        "). ",
        verdict.reason,
        class_=f"verdict {verdict.level}",
    )


def loss_section(
    folder: Path, run: RunRecord, verdict: Verdict, widths: list[int], clip: float | None
) -> Markup:
    """Loss, trends inside the buckets, gradient norm.

    Args:
        folder: where the figures go.
        run: what the training recorded.
        verdict: the judgement on it.
        widths: upper bounds of the buckets in tokens.
        clip: largest norm of the gradient, None if it is not clipped.
    """
    tokens = run.useful_tokens_T
    step = run.metrics["step"].to_numpy()
    adjusted = (np.interp(verdict.segment_step, step, tokens), verdict.segment_loss)
    heldout = (run.tokens_at(run.heldout["step"].to_numpy()), numbers(run.heldout, "loss"))
    loss = numbers(run.metrics, "loss")
    skipped = tokens[run.metrics["skipped"].cast(pl.Boolean).to_numpy()]
    last = float(np.nanmedian(loss[-20:])) if np.isfinite(loss[-20:]).any() else float("nan")
    drawn = block(
        folder,
        "loss",
        [draw_loss(theme, tokens, loss, adjusted, heldout, skipped) for theme in THEMES],
        alt=f"Loss of {count(len(step))} steps over useful tokens, about {last:.3g} nats at the end; "
        f"held-out loss {_ends(heldout[1])}.",
        caption="Thin: the loss of every step. Thick: the same without what the composition of the steps explains. "
        "A run of good health jumps, and the thick line does not rise.",
    )
    judged = {number: trend for number, trend in verdict.bucket_trends.items() if np.isfinite(trend.slope)}
    scarce = len(verdict.bucket_trends) - len(judged)
    names, trends = [_bucket_name(number, widths) for number in judged], list(judged.values())
    values = [
        [trend.slope for trend in trends],
        [trend.lower for trend in trends],
        [trend.upper for trend in trends],
    ]
    by_bucket = block(
        folder,
        "trends",
        [draw_bucket_trends(theme, names, *values) for theme in THEMES],
        alt="Trend of the loss inside each bucket, nats per 1,000 steps: "
        + ", ".join(
            f"{name} {interval(trend.slope, trend.lower, trend.upper)}"
            for name, trend in zip(names, trends, strict=True)
        ),
        caption="The second half of the run, with 95 % intervals. A bucket right of zero is getting worse."
        + (f" {count(scarce)} more had too few cells." if scarce else ""),
    )
    gradient = block(
        folder,
        "gradient",
        [
            draw_gradient(
                theme, step, numbers(run.metrics, "grad_norm"), numbers(run.metrics, "learning_rate"), clip
            )
            for theme in THEMES
        ],
        alt="Gradient norm before clipping and learning rate over the steps.",
        caption="A norm that rises many times over at once announces a blow-up.",
    )
    return section("loss", "Loss", verdict_box(verdict), drawn, _evidence(verdict), by_bucket, gradient)


def _ends(values: NDArray[np.float64]) -> str:
    return f"from {values[0]:.3g} to {values[-1]:.3g} nats" if len(values) else "was not measured"


def _bucket_name(number: int, widths: list[int]) -> str:
    return f"up to {widths[number]:,} tokens" if 0 <= number < len(widths) else f"bucket {number}"


def _evidence(verdict: Verdict) -> Markup:
    trend = verdict.trend
    period = "unknown" if np.isnan(verdict.loss_at_period) else f"{verdict.loss_at_period:.2f}"
    rows = [
        (
            "changes from step to step that the buckets of the steps explain",
            percent(verdict.explained_by_bucket),
        ),
        ("the same with the lengths inside the buckets", percent(verdict.explained_by_length)),
        (
            "trend over the second half, composition removed (nats per 1,000 steps)",
            interval(trend.slope, trend.lower, trend.upper),
        ),
        (
            f"autocorrelation of the steps' mean length, greatest at {verdict.order_lag} steps",
            f"{verdict.order:.2f}",
        ),
        ("autocorrelation of the loss's changes at the plan's period", period),
    ]
    return table(["what the verdict rests on", "value"], rows, numbers=[1])


def rates(run: RunRecord) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Useful and padded tokens per second of each step."""
    seconds = numbers(run.metrics, "seconds")
    safe = np.where(seconds > 0, seconds, np.nan)
    return numbers(run.metrics, "useful_tokens") / safe, numbers(run.metrics, "padded_tokens") / safe


def machine_section(folder: Path, run: RunRecord) -> Markup:
    """Throughput, how the ranks spent their time, power and energy."""
    step = run.metrics["step"].to_numpy()
    useful, padded = rates(run)
    seconds = float(np.nansum(numbers(run.metrics, "seconds")))
    total_useful, total_padded = (
        float(numbers(run.metrics, name).sum()) for name in ("useful_tokens", "padded_tokens")
    )
    whole = f"{compact(total_useful / max(seconds, 1e-9))} useful and {compact(total_padded / max(seconds, 1e-9))} padded tokens/s"
    speed = block(
        folder,
        "throughput",
        [draw_throughput(theme, step, useful, padded) for theme in THEMES],
        alt=f"Tokens per second over the steps; {whole} over the whole run.",
        caption=f"Over the whole run ({duration(seconds)} of steps) {whole}: padding efficiency {percent(total_useful / max(1, total_padded))}.",
    )
    names, shares = balance(run.ranks)
    balance_block = block(
        folder,
        "balance",
        [draw_balance(theme, names, shares) for theme in THEMES],
        alt="; ".join(
            f"{' '.join(name.split())}: "
            + ", ".join(f"{what} {values[k]:.0%}" for what, values in shares.items())
            for k, name in enumerate(names)
        ),
        caption="Blocked on empty: the rank waited for work. Blocked on full: it waited for room to hand work on. "
        "The side that is always busy sets the rate.",
    )
    watts, joules = power(run)
    known = f"{np.nanmean(joules):.3g} J per useful token" if np.isfinite(joules).any() else "energy unknown"
    readable = np.isfinite(joules).any() or any(np.isfinite(each).any() for each in watts.values())
    energy = (
        block(
            folder,
            "energy",
            [draw_energy(theme, step, watts, joules) for theme in THEMES],
            alt=f"Power by rank and energy per useful token; {known}.",
            caption="From the energy counter of the device where there is one; a counter that cannot be read is unknown, never zero.",
        )
        if readable
        else element("p", "Power and energy unknown: no energy counter was readable.")
    )
    return section(
        "machine",
        "Throughput, balance, energy",
        speed,
        balance_block,
        _rate_table(run),
        _utilization_table(run),
        _rank_table(run.ranks),
        energy,
    )


def _rate_table(run: RunRecord) -> Markup:
    """What each side could do without waiting, the least of them, and what the run did."""
    rates = service_rates(run)
    share = percent(rates.actual / rates.predicted)
    rows = [
        (f"{ROLES.get(role, role)}, if never waiting", compact(rate)) for role, rate in rates.by_role.items()
    ]
    rows += [
        ("predicted: the least of these", compact(rates.predicted)),
        (f"actual ({share} of it)", compact(rates.actual)),
    ]
    return table(["rate", "useful tokens/s"], rows, caption="Predicted and actual rate", numbers=[1])


def _utilization_table(run: RunRecord) -> Markup:
    """The share of the devices' peak that each role's model products take."""
    found = utilization(run)
    rows = []
    for role, each in found.items():
        machines = [machine for machine in run.machines if machine["role"] == role]
        devices = ", ".join(dict.fromkeys(machine["device"] for machine in machines))
        peaks = [machine["peak_flops"] for machine in machines]
        peak = "unknown" if None in peaks else compact(sum(peaks), "FLOP/s")
        share = f"unknown: {each.reason}" if each.reason else percent(each.share)
        rows.append((ROLES.get(role, role), f"{len(machines)} x {devices}", peak, share))
    caption = (
        "Model FLOPs utilization (MFU): products of the models on useful tokens / what the devices could do in the time of the steps "
        "(dense bfloat16). Attention's inner products are left out, so it is a lower bound."
    )
    return table(["role", "devices", "peak together", "MFU"], rows, caption=caption)


def _one(role: str) -> str:
    """What one rank of a role is called."""
    return "target and drafter" if role == "both" else role


def balance(ranks: pl.DataFrame) -> tuple[list[str], dict[str, list[float]]]:
    """Each rank's name and the shares of its time."""
    parts = {
        "busy": "busy_seconds",
        "blocked on empty": "blocked_empty_seconds",
        "blocked on full": "blocked_full_seconds",
    }
    grouped = ranks.group_by("rank", "role").agg(pl.col(list(parts.values())).sum()).sort("rank", "role")
    total = np.maximum(1e-9, sum(numbers(grouped, column) for column in parts.values()))
    names = [f"rank {row['rank']}\n({_one(row['role'])})" for row in grouped.iter_rows(named=True)]
    return names, {name: list(numbers(grouped, column) / total) for name, column in parts.items()}


def power(run: RunRecord) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Mean power of each rank in watts and joules per useful token, by step; NaN where unknown."""
    steps = run.metrics["step"].to_numpy()
    seconds, useful = numbers(run.metrics, "seconds"), numbers(run.metrics, "useful_tokens")
    watts, total = {}, np.zeros(len(steps))
    for (rank, role), table_of in run.ranks.group_by(["rank", "role"], maintain_order=True):
        joules = np.full(len(steps), np.nan)
        place = np.searchsorted(steps, table_of["step"].to_numpy())
        inside = place < len(steps)
        joules[place[inside]] = numbers(table_of, "energy_joules")[inside]
        watts[f"rank {rank} ({_one(role)})"] = joules / np.where(seconds > 0, seconds, np.nan)
        total = total + joules
    return watts, (total if watts else np.full(len(steps), np.nan)) / np.where(useful > 0, useful, np.nan)


def _rank_table(ranks: pl.DataFrame) -> Markup:
    grouped = (
        ranks.group_by("rank", "role")
        .agg(
            pl.col("busy_seconds").sum(),
            pl.col("queued_bytes").mean(),
            pl.col("memory_bytes").max(),
            pl.col("energy_joules").sum().alias("energy"),
            pl.col("energy_joules").null_count().alias("unknown"),
        )
        .sort("rank", "role")
    )
    rows = [
        (
            row["rank"],
            _one(row["role"]),
            duration(row["busy_seconds"]),
            compact(row["queued_bytes"], "B"),
            compact(row["memory_bytes"], "B"),
            "unknown" if row["unknown"] else compact(row["energy"], "J"),
        )
        for row in grouped.iter_rows(named=True)
    ]
    header = ["rank", "role", "busy", "queued, mean", "memory, greatest", "energy"]
    return join([table(header, rows, caption="Ranks", numbers=[0, 2, 3, 4, 5])])
