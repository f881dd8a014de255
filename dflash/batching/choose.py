"""From a histogram and prices to boundaries, and all that a person wants to know about the choice."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dflash.batching.alternatives import (
    equal_count,
    equal_tokens,
    equal_width,
    padding_efficiency,
    waste_constant,
)
from dflash.batching.assembly import check_widths
from dflash.batching.boundaries import Curve, best_boundaries
from dflash.batching.buckets import layout_of
from dflash.batching.cost import Price, aligned


@dataclass(frozen=True)
class Choice:
    """How many buckets, and at what price.

    Attributes:
        price: what boundaries minimize.
        num_buckets: their number; `auto`: by the price of a shape.
        max_buckets: largest number for `auto`.
        shape_price: price of one more shape, as a share of the useful tokens.
        alignment: widths are multiples of it.
        boundaries: given bounds, instead of the best.
        zero_length: `drop` leaves empty samples out.
    """

    price: Price
    num_buckets: int | Literal["auto"] = "auto"
    max_buckets: int = 64
    shape_price: float = 0.005
    alignment: int | Literal["proportional"] = 8
    boundaries: list[int] | None = None
    zero_length: str = "drop"


def choose_boundaries(lengths: np.ndarray, samples: np.ndarray, choice: Choice) -> dict[str, Any]:
    """The content of boundaries.json.

    Args:
        lengths: int64, distinct increasing lengths.
        samples: samples of each.
        choice: the rule.

    Returns:
        widths, rows (by cost and memory), num_samples, efficiency, chosen_by, notes, waste_constant, and curve: for
        each number of buckets the efficiency of the best boundaries, of the closed form, and of other rules.

    Raises:
        ValueError: a sample does not fit the budgets, or given bounds do not cover the longest sample.
    """
    if choice.zero_length == "drop":
        samples, lengths = samples[lengths > 0], lengths[lengths > 0]
    if choice.boundaries is not None:
        check_widths(choice.boundaries, int(lengths.max(initial=0)))
    if not len(lengths):
        empty = {
            "widths": [],
            "rows": [],
            "num_samples": 0,
            "efficiency": None,
            "waste_constant": None,
            "curve": [],
        }
        return {**empty, "chosen_by": "nothing to batch", "notes": ["the data set is empty"]}
    widths, member = np.unique(aligned(lengths, choice.alignment), return_inverse=True)
    counts = np.bincount(member, weights=samples).astype(np.int64)
    useful = int((lengths * samples).sum())
    most = choice.max_buckets if choice.num_buckets == "auto" else max(choice.max_buckets, choice.num_buckets)
    prices = choice.price.of(widths)
    curve = best_boundaries(widths, counts, prices, num_buckets=most)
    chosen, chosen_by, notes = _chosen(curve, counts, useful, choice)
    constant = waste_constant(lengths, samples)
    return {
        "widths": chosen.tolist(),
        "rows": choice.price.limits.max_rows(chosen).tolist(),
        "num_samples": int(samples.sum()),
        "useful_tokens": useful,
        "efficiency": padding_efficiency(widths, counts, useful, chosen),
        "chosen_by": chosen_by,
        "notes": notes,
        "waste_constant": constant,
        "curve": _rows(curve, counts, useful, constant),
    }


def _chosen(
    curve: Curve, counts: np.ndarray, useful: int, choice: Choice
) -> tuple[np.ndarray, str, list[str]]:
    """The bounds, the rule that gave them, and notes on what was clamped."""
    if choice.boundaries is not None:
        return np.array(choice.boundaries, np.int64), "batching.boundaries", []
    if choice.num_buckets != "auto":
        bounds = curve.boundaries(choice.num_buckets)
        notes = []
        if len(bounds) < choice.num_buckets:
            notes.append(
                f"num_buckets is {choice.num_buckets}, but {len(bounds)} distinct widths are all there are"
            )
        return bounds, "batching.num_buckets", notes
    totals = [
        _whole_price(curve, counts, number, choice) + choice.shape_price * useful * number
        for number in range(1, len(curve.totals) + 1)
    ]
    number = int(np.argmin(totals)) + 1
    notes = []
    if number == choice.max_buckets < len(curve.widths):
        notes.append(
            f"batching.max_buckets = {choice.max_buckets} was reached; more buckets would pay at this shape_price"
        )
    return curve.boundaries(number), "batching.shape_price", notes


def _whole_price(curve: Curve, counts: np.ndarray, number: int, choice: Choice) -> float:
    """Price with whole batches: what short batches cost beyond their share, which matters for small data sets."""
    bounds = curve.boundaries(number)
    counts_K = np.bincount(np.searchsorted(bounds, curve.widths), weights=counts).astype(np.int64)
    rows_K = choice.price.limits.max_rows(bounds)
    missing = float(layout_of(counts_K, rows_K).num_batches_K.sum() - (counts_K / rows_K).sum())
    per_batch = choice.price.micro_batch * choice.price.limits.budget_tokens
    return float(curve.totals[number - 1]) + per_batch * max(missing, 0.0)


def _rows(curve: Curve, counts: np.ndarray, useful: int, constant: float) -> list[dict[str, float]]:
    """The curve over the number of buckets, beside what other rules give."""
    widths = curve.widths
    rows = []
    for number, total in enumerate(curve.totals.tolist(), start=1):
        rules = {
            "efficiency": curve.boundaries(number),
            "equal_width": equal_width(widths, number),
            "quantile": equal_count(widths, counts, number),
            "equal_token": equal_tokens(widths, counts, number),
        }
        values = {name: padding_efficiency(widths, counts, useful, bounds) for name, bounds in rules.items()}
        rows.append(
            {"num_buckets": number, "price": total, "closed_form": 1 / (1 + constant / number), **values}
        )
    return rows
