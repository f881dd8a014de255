"""Is one setting better than another? Statistics of runs with several seeds, and what may be claimed from them.

A *side* is the experiments whose settings differ in seeds alone. Each of its runs gives a value, which differs from run to run (seeds)
and depends on the anchors or prompts it was measured on. Both sides are measured on the same prompts, so a prompt that is easy for both
cancels: the difference is taken prompt by prompt.

    variance of the difference = s_a^2 / n_a + s_b^2 / n_b + variance over prompts of the difference / prompts

s is the standard deviation over a side's seeds, n the number of its runs. The noise of single measurements enters both terms, so the
interval is rather too wide. Degrees of freedom by Welch and Satterthwaite. With fewer than three seeds on a side nothing is claimed.
Over several quantities the claims are corrected by Holm, so that all of a pair's claims together are wrong in at most 5 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dflash.report.student import quantile, two_sided

MIN_SEEDS = 3
LEVEL = 0.05
Finding = Literal["better", "worse", "no difference shown", "these models differ"]


@dataclass(frozen=True)
class Measured:
    """One quantity on one side. R runs, P prompts."""

    values_R: NDArray[np.float64]
    """The value of each run."""
    by_prompt_RP: NDArray[np.float64] | None = None
    """The value of each run on each prompt (or held-out sample), the same prompts on both sides; None where it is unknown."""


@dataclass(frozen=True)
class Difference:
    """Second side minus first, with its 95 % interval; NaN where it cannot be known."""

    value: float
    lower: float
    upper: float
    probability: float
    """Of a difference as large where there is none (two-sided)."""
    from_seeds: float
    from_prompts: float
    """Standard errors of the two sources; `from_prompts` is NaN where it is unknown."""


def difference(first: Measured, second: Measured) -> Difference:
    """How much larger the second side is.

    Raises:
        ValueError: the sides were measured on different numbers of prompts.
    """
    value = float(second.values_R.mean() - first.values_R.mean())
    seeds = [
        (_variance(side.values_R) / len(side.values_R), len(side.values_R) - 1) for side in (first, second)
    ]
    prompts = _prompt_term(first, second)
    known = [term for term in (*seeds, prompts) if term is not None and term[1] > 0 and term[0] > 0]
    variance = sum(term for term, _ in known)
    from_prompts = math.sqrt(prompts[0]) if prompts is not None else math.nan
    from_seeds = (
        math.sqrt(sum(term for term, _ in seeds)) if all(freedom > 0 for _, freedom in seeds) else math.nan
    )
    if math.isnan(from_seeds):
        return Difference(value, math.nan, math.nan, math.nan, from_seeds, from_prompts)
    if variance == 0:
        return Difference(value, value, value, 0.0 if value else 1.0, 0.0, from_prompts)
    freedom = variance**2 / sum(term**2 / each for term, each in known)
    error = math.sqrt(variance)
    reach = quantile(1 - LEVEL, freedom) * error
    return Difference(
        value, value - reach, value + reach, two_sided(value / error, freedom), from_seeds, from_prompts
    )


def _variance(values: NDArray[np.float64]) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else math.nan


def _prompt_term(first: Measured, second: Measured) -> tuple[float, int] | None:
    if first.by_prompt_RP is None or second.by_prompt_RP is None:
        return None
    here, there = first.by_prompt_RP, second.by_prompt_RP
    if here.shape[1] != there.shape[1]:
        raise ValueError(
            f"one side was measured on {here.shape[1]} prompts, the other on {there.shape[1]}; evaluate both on the same"
        )
    apart = there.mean(axis=0) - here.mean(axis=0)
    return (_variance(apart) / len(apart), len(apart) - 1) if len(apart) > 1 else None


def findings(
    differences: Mapping[str, Difference], num_seeds: Sequence[int], less_is_better: Sequence[str]
) -> dict[str, Finding]:
    """What may be said of each quantity.

    Args:
        differences: by the quantity's name.
        num_seeds: runs of both sides.
        less_is_better: quantities such as a loss.
    """
    if min(num_seeds) < MIN_SEEDS:
        return dict.fromkeys(differences, "these models differ")
    found: dict[str, Finding] = {}
    open_claims = True
    ordered = sorted(differences.items(), key=lambda item: item[1].probability)
    for place, (name, each) in enumerate(ordered):
        open_claims = open_claims and each.probability < LEVEL / (len(ordered) - place)
        better = (each.value < 0) == (name in less_is_better)
        found[name] = ("better" if better else "worse") if open_claims else "no difference shown"
    return {name: found[name] for name in differences}


def common_tokens(tokens: Sequence[NDArray[np.float64]]) -> float:
    """The most useful tokens (or seconds) that every curve reaches."""
    return min(float(each[-1]) for each in tokens)


def value_at(x: NDArray[np.float64], y: NDArray[np.float64], place: float) -> float:
    """A curve's value at a place between its points; NaN before its first."""
    if not len(x) or place < x[0]:
        return math.nan
    return float(np.interp(place, x, y))


def pareto(x: Sequence[float], y: Sequence[float], *, less_y: bool) -> list[bool]:
    """Which points no other beats: none has a larger x and a better y (one of them strictly)."""
    sign = -1.0 if less_y else 1.0
    points = [(a, sign * b) for a, b in zip(x, y, strict=True)]
    return [
        not any(p[0] >= q[0] and p[1] >= q[1] and p != q for p in points if not any(map(math.isnan, p)))
        and not any(map(math.isnan, q))
        for q in points
    ]
