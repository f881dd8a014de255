"""The plan: a pure function of lengths, supervised counts, policy and seed; it answers any batch of any epoch."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dflash.batching.assembly import policy_over, shape_of
from dflash.batching.batch import Batch, Policy
from dflash.batching.description import FORMAT, POLICIES, Description, PlanConfig, digest_of_column
from dflash.batching.steps import Mixing, last_step


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
    shape = shape_of(lengths_N, supervised_N, config, widths or [])
    description = Description(
        format=FORMAT,
        config=config,
        lengths_digest=digest_of_column(lengths_N),
        supervised_digest=digest_of_column(supervised_N),
        num_rows=len(lengths_N),
        num_samples=kept,
        num_dropped=len(lengths_N) - kept,
        widths=shape.widths,
        rows=shape.rows,
        counts=shape.counts,
    )
    return Plan(description, policy_over(description, shape.arrays), shape.arrays)


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
    return Plan(description, policy_over(description, arrays), arrays)


def _mapped(path: Path, count: int) -> np.ndarray:
    dtype = np.dtype("<u4" if path.suffix == ".u32" else "<i4")
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(
            f"{path} has {path.stat().st_size} bytes, the plan needs {count * dtype.itemsize}; build it again"
        )
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if count else np.zeros(0, dtype)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)
