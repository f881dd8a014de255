"""The plan: a pure function of lengths, supervised counts, policy and seed; it answers any batch of any epoch."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dflash.batching.batch import Batch, Policy
from dflash.batching.buckets import Buckets, bucket_of, bucket_order
from dflash.batching.cost import Limits, aligned, expected_anchors
from dflash.batching.indexed import Indexed, greedy_index, pool_size
from dflash.batching.packing import packed_index
from dflash.batching.steps import Mixing, last_step

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


class Plan:
    """Batches of every epoch. A micro-batch is (epoch, step, cell); ranks are no part of it."""

    def __init__(self, description: Description, policy: Policy, arrays: dict[str, np.ndarray]) -> None:
        """Args: the description, the policy over the arrays, and the arrays by file name."""
        self.description = description
        self.policy = policy
        self.arrays = arrays
        self.plan_id = description.plan_id
        self.num_samples = description.num_samples
        self.num_cells = description.config.cells_per_step
        self.widths = tuple(description.widths)
        name = description.config.policy
        self.mixing = Mixing(
            description.config.seed, batches=name != "bucketed" and name != "sorted", steps=name != "sorted"
        )
        self._rows = dict(zip(description.widths, description.rows, strict=True))
        self._last: tuple[int, list[Batch]] | None = None

    def num_steps(self, epoch: int) -> int:
        """Optimizer steps of an epoch; the last may hold split batches or empty cells."""
        return -(-self.policy.num_batches(epoch) // self.num_cells)

    def max_rows(self, width: int) -> int:
        """Rows of a micro-batch of this width at most."""
        return self._rows[width]

    def batch(self, epoch: int, step: int, cell: int) -> Batch:
        """One micro-batch.

        Raises:
            ValueError: the epoch has no such step, or a step no such cell.
        """
        steps = self.num_steps(epoch)
        if epoch < 0 or not 0 <= step < steps or not 0 <= cell < self.num_cells:
            raise ValueError(
                f"the plan has no epoch {epoch}, step {step}, cell {cell}: epochs begin at 0, "
                f"epoch {epoch} has {steps} steps of {self.num_cells} cells"
            )
        total = self.policy.num_batches(epoch)
        if step < total // self.num_cells:
            place = np.array([step * self.num_cells + cell])
            return self.policy.batch(epoch, int(self.mixing.slots(epoch, total, self.num_cells, place)[0]))
        if self._last is None or self._last[0] != epoch:
            places = np.arange(step * self.num_cells, total)
            slots = self.mixing.slots(epoch, total, self.num_cells, places)
            batches = [self.policy.batch(epoch, slot) for slot in slots.tolist()]
            self._last = (epoch, last_step(batches, self.num_cells))
        return self._last[1][cell]


def make_plan(
    lengths_N: np.ndarray, supervised_N: np.ndarray, config: PlanConfig, widths: list[int] | None = None
) -> Plan:
    """Make the plan of a data set.

    Args:
        lengths_N: int32 tokens of every sample, in the order of sample ids.
        supervised_N: int32 supervised tokens of every sample.
        config: the policy.
        widths: `bucketed`: the boundaries, increasing.

    Raises:
        ValueError: the arrays differ in length, the boundaries do not cover the data, a sample does not fit the
            budgets, or a setting is impossible.
    """
    if len(lengths_N) != len(supervised_N):
        raise ValueError(
            f"{len(lengths_N)} lengths but {len(supervised_N)} supervised counts; each sample has one of both"
        )
    if config.policy not in POLICIES:
        raise ValueError(f"batching.policy is {config.policy!r}; known are {', '.join(POLICIES)}")
    lengths_N = np.asarray(lengths_N, np.int32)
    supervised_N = np.asarray(supervised_N, np.int32)
    kept = len(lengths_N) if config.zero_length == "keep" else int(np.count_nonzero(lengths_N))
    if config.policy == "bucketed":
        shape, arrays = _bucketed(lengths_N, supervised_N, config, widths)
    else:
        arrays = {"lengths.i32": lengths_N, "anchors.i32": _anchors(supervised_N, config)}
        shape = _ragged_shape(lengths_N, config)
    description = Description(
        FORMAT,
        config,
        _digest(lengths_N),
        _digest(supervised_N),
        len(lengths_N),
        kept,
        len(lengths_N) - kept,
        *shape,
    )
    return Plan(description, _policy(description, arrays), arrays)


def _anchors(supervised_N: np.ndarray, config: PlanConfig) -> np.ndarray:
    return expected_anchors(supervised_N, config.anchor_share, config.anchors_per_sample)


def _bucketed(
    lengths_N: np.ndarray, supervised_N: np.ndarray, config: PlanConfig, widths: list[int] | None
) -> tuple[tuple[list[int], list[int], list[int]], dict[str, np.ndarray]]:
    """Widths, rows and counts of the buckets that hold samples, and the order."""
    longest = int(lengths_N.max(initial=0))
    check_widths(widths or [], longest)
    if not len(lengths_N) or not widths:
        return ([], [], []), {"order.u32": np.zeros(0, np.uint32)}
    buckets_N = bucket_of(lengths_N, np.array(widths))
    if config.zero_length == "drop" and not lengths_N.all():
        # Empty samples are sorted behind all buckets, where nothing looks.
        buckets_N[lengths_N == 0] = len(widths)
    order, counts = bucket_order(buckets_N, len(widths) + 1)
    counts = counts[:-1]
    limits = config.limits
    rows = limits.max_rows(
        np.array(widths)[: int(np.flatnonzero(counts)[-1]) + 1] if counts.any() else np.zeros(0, int)
    )
    anchors = np.bincount(buckets_N, weights=_anchors(supervised_N, config), minlength=len(widths))
    used = np.flatnonzero(counts)
    mean_anchors = anchors[used] / counts[used]
    by_anchors = np.floor(limits.budget_anchors / np.maximum(mean_anchors, 1e-9)).astype(np.int64)
    kept_rows = np.maximum(np.minimum(rows[used], by_anchors), 1)
    shape = (np.array(widths)[used].tolist(), kept_rows.tolist(), counts[used].tolist())
    return shape, {"order.u32": order[: int(counts.sum())]}


def check_widths(widths: list[int], longest: int) -> None:
    """Refuse boundaries that are not increasing or do not cover the longest sample.

    Raises:
        ValueError: names the boundaries and what is wrong.
    """
    if any(after <= before for before, after in zip([0, *widths], widths, strict=False)):
        raise ValueError(f"batching.boundaries is {widths}; the bounds must be positive and increasing")
    if len(widths) > 256:
        raise ValueError(f"batching.boundaries has {len(widths)} bounds; at most 256 are possible")
    if longest > (widths[-1] if widths else 0):
        raise ValueError(
            f"batching.boundaries is {widths}, but the longest sample has {longest} tokens; "
            f"let the last bound be at least {longest}"
        )


def _ragged_shape(lengths_N: np.ndarray, config: PlanConfig) -> tuple[list[int], list[int], list[int]]:
    """Distinct widths and rows of a policy without buckets."""
    lengths = np.unique(lengths_N if config.zero_length == "keep" else lengths_N[lengths_N > 0])
    widths = np.unique(aligned(lengths, config.alignment)) if len(lengths) else lengths
    limits = config.limits
    if config.policy == "packed" and len(lengths):
        limits.max_rows(lengths[-1:])
        return [limits.largest_width], [1], []
    return widths.tolist(), limits.max_rows(widths).tolist(), []


def _policy(description: Description, arrays: dict[str, np.ndarray]) -> Policy:
    """The policy over its arrays."""
    config = description.config
    if config.policy == "bucketed":
        shape = [
            np.array(each, np.int64) for each in (description.widths, description.rows, description.counts)
        ]
        return Buckets(arrays["order.u32"], *shape, seed=config.seed)
    lengths_N, anchors_N = arrays["lengths.i32"], arrays["anchors.i32"]
    samples_N = np.arange(len(lengths_N))
    if config.zero_length == "drop":
        samples_N = np.flatnonzero(lengths_N)
        lengths_N, anchors_N = lengths_N[samples_N], anchors_N[samples_N]
    limits = config.limits
    if config.policy == "packed":
        width = description.widths[0] if description.widths else 1
        return Indexed(
            lambda epoch: packed_index(
                samples_N,
                lengths_N,
                anchors_N,
                limits,
                width=width,
                window=config.pack_window,
                seed=config.seed,
                epoch=epoch,
            )
        )
    widths_N = aligned(lengths_N, config.alignment)
    pool = pool_size(widths_N, limits, config.pool_batches)
    return Indexed(
        lambda epoch: greedy_index(
            samples_N,
            widths_N,
            anchors_N,
            np.array(description.widths),
            limits,
            order=config.policy,
            pool=pool,
            seed=config.seed,
            epoch=epoch,
        )
    )


def save_plan(plan: Plan, folder: Path) -> None:
    """Write plan.json and the arrays (little-endian, no header). plan.json comes last: with it the plan is whole."""
    for name, array in plan.arrays.items():
        _replace(
            folder / name,
            np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes(),
        )
    text = json.dumps({"plan_id": plan.plan_id, **asdict(plan.description)}, indent=1, sort_keys=True) + "\n"
    _replace(folder / "plan.json", text.encode())


def load_plan(folder: Path) -> Plan:
    """Open a plan; the arrays are memory-mapped.

    Raises:
        ValueError: the files are of another format, or do not fit the plan's identity.
    """
    raw = json.loads((folder / "plan.json").read_text())
    plan_id = raw.pop("plan_id")
    if raw.get("format") != FORMAT:
        raise ValueError(
            f"{folder}: the plan has format {raw.get('format')}, this version reads {FORMAT}; build it again"
        )
    config = PlanConfig(**raw.pop("config"))
    description = Description(config=config, **raw)
    if description.plan_id != plan_id:
        raise ValueError(
            f"{folder}/plan.json was edited: its content does not give plan_id {plan_id}; build it again"
        )
    names = ["order.u32"] if config.policy == "bucketed" else ["lengths.i32", "anchors.i32"]
    count = description.num_samples if config.policy == "bucketed" else description.num_rows
    arrays = {name: _mapped(folder / name, count) for name in names}
    return Plan(description, _policy(description, arrays), arrays)


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


def _mapped(path: Path, count: int) -> np.ndarray:
    dtype = np.dtype("<u4" if path.suffix == ".u32" else "<i4")
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(
            f"{path} has {path.stat().st_size} bytes, the plan needs {count * dtype.itemsize}; build it again"
        )
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if count else np.zeros(0, dtype)


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<i4")).hexdigest()


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)
