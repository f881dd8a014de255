"""What a plan is made of, in plain values, and the identity that follows from it."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from dflash.batching.cost import Limits

FORMAT = 1
POLICIES = ("bucketed", "pooled", "packed", "sorted", "random")


@dataclass(frozen=True)
class PlanConfig:
    """The policy in plain values; see `dflash.config.batching` for what each means."""

    policy: str = "bucketed"
    seed: int = 0
    budget_tokens: int = 1024
    attention_tokens: int | None = None
    memory_tokens: int | None = None
    budget_anchors: int = 2048
    alignment: int | Literal["proportional"] = 8
    cells_per_step: int = 4
    pool_batches: int = 50
    pack_window: int = 4000
    zero_length: str = "drop"
    anchor_share: float = 1.0
    anchors_per_sample: int = 512

    @property
    def limits(self) -> Limits:
        """Budgets and memory model of a micro-batch."""
        return Limits(self.budget_tokens, self.attention_tokens, self.memory_tokens, self.budget_anchors)


@dataclass(frozen=True)
class Description:
    """plan.json: everything but the arrays. `plan_id` is the digest of the rest.

    Attributes:
        format: layout of the plan's files.
        config: the policy.
        lengths_digest, supervised_digest: sha256 of the int32 columns.
        num_rows: samples of the data set.
        num_samples: samples that are planned.
        num_dropped: empty samples that are not.
        widths: distinct widths of micro-batches, increasing.
        rows: rows of a micro-batch of each width at most.
        counts: `bucketed`: samples of each bucket.
    """

    format: int
    config: PlanConfig
    lengths_digest: str
    supervised_digest: str
    num_rows: int
    num_samples: int
    num_dropped: int
    widths: list[int]
    rows: list[int]
    counts: list[int]

    @property
    def plan_id(self) -> str:
        """64 hex digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def check_same_plan(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse to resume on a different plan.

    Args:
        ours: plan.json of the plan at hand.
        theirs: plan.json of the plan that the saved state was made with.

    Raises:
        ValueError: names the fields that differ, with both values.
    """
    if ours["plan_id"] == theirs["plan_id"]:
        return
    flat_ours, flat_theirs = ({**each, **each.get("config", {})} for each in (ours, theirs))
    names = sorted({*flat_ours, *flat_theirs} - {"plan_id", "config"})
    differing = [
        f"{name} is {flat_ours.get(name)!r}, was {flat_theirs.get(name)!r}"
        for name in names
        if flat_ours.get(name) != flat_theirs.get(name)
    ]
    raise ValueError(
        f"the saved state belongs to another plan: {'; '.join(differing)}; start anew or restore the plan"
    )


def digest_of_column(values: np.ndarray) -> str:
    """sha256 of an int32 column."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<i4").data).hexdigest()
