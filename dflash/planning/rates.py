"""Measures target and drafter alone on this machine, at the shapes of the plan and the configured anchors."""

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dflash.batching.batch import Batch
from dflash.model.device import device_of
from dflash.planning.advice import Rates, Rings, Stretch
from dflash.training.drafter_loop import DrafterLoop
from dflash.training.job import Job
from dflash.training.meters import Meter
from dflash.training.parts import Rank, drafter_loop
from dflash.training.rank import open_rank
from dflash.training.stopping import Stopping
from dflash.transfer.roles import Topology

SECONDS_PER_SHAPE = 0.3
"""Each shape is repeated this long, at least `REPETITIONS` times after one that is not counted; medians are taken."""
REPETITIONS = 3
SEARCHED_STEPS = 2000
"""Steps of the first epoch in which a full micro-batch of every width is looked for."""
PLAYED_STEPS = 300
IDLE_SECONDS = 1.0
COPIED_BYTES = 64 << 20


@dataclass(frozen=True)
class Measurement:
    """Rates of this machine, a stretch of the plan to play, useful tokens of the whole training, the job's rings."""

    machine: str
    rates: Rates
    stretch: Stretch
    total_tokens: int
    rings: Rings


def measure(job: Job) -> Measurement:
    """Measure both sides with the job's target and a fresh drafter.

    Raises:
        ValueError: the plan has no micro-batch.
    """
    device = device_of(job.runtime.device, 0)
    meter = Meter(device, whole_machine=True)
    idle_watts = _watts(meter, lambda: time.sleep(IDLE_SECONDS))
    rank = open_rank(job, Topology.parse("colocated: 1"), device, None, meter, Stopping(None))
    loop = drafter_loop(rank, 0, None)
    examples = _examples(rank)
    if not examples:
        raise ValueError(f"the plan {job.plan} has no micro-batch; there is nothing to measure")
    seconds: dict[int, tuple[float, float]] = {}

    def run_all() -> None:
        for number, (width, batch) in enumerate(sorted(examples.items()), start=1):
            seconds[width] = _both_sides(rank, loop, batch)
            target, drafter = seconds[width]
            shape = f"{batch.num_rows} x {width} tokens"
            print(
                f"{number}/{len(examples)}  {shape}: target {target:.4f} s, drafter {drafter:.4f} s",
                flush=True,
            )

    busy_watts = _watts(meter, run_all)
    widths = sorted(examples)
    rates = Rates(
        width_K=np.array(widths),
        rows_K=np.array([examples[width].num_rows for width in widths]),
        target_seconds_K=np.array([seconds[width][0] for width in widths]),
        drafter_seconds_K=np.array([seconds[width][1] for width in widths]),
        step_seconds=_median(lambda: loop.optimizer.step(0.0, 1.0), device),
        reduce_seconds=loop.buffer.flat.numel() * loop.buffer.flat.element_size() * _seconds_per_byte(device),
        packet_seconds_per_token=rank.layout.size(1, 1)
        * rank.layout.dtype.itemsize
        * _seconds_per_byte(device),
        busy_watts=busy_watts,
        idle_watts=idle_watts,
    )
    stretch = _stretch(rank)
    steps = len(np.unique(stretch.step_C))
    total = int(stretch.useful_tokens_C.sum() / steps * rank.data.stream.num_steps)
    rings = Rings(job.runtime.ring_packets, job.runtime.ring_bytes, rank.layout.num_bytes(*rank.data.largest))
    return Measurement(_machine(device), rates, stretch, total, rings)


def _examples(rank: Rank) -> dict[int, Batch]:
    """The fullest micro-batch of each width among the first steps."""
    plan, found = rank.data.plan, dict[int, Batch]()
    for step in range(min(plan.num_steps(0), SEARCHED_STEPS)):
        for cell in range(plan.num_cells):
            batch = plan.batch(0, step, cell)
            if batch.num_rows and batch.num_rows > (
                found[batch.width].num_rows if batch.width in found else 0
            ):
                found[batch.width] = batch
    return found


def _stretch(rank: Rank) -> Stretch:
    plan, lengths_N = rank.data.plan, rank.data.samples.lengths_N
    rows = []
    for step in range(min(plan.num_steps(0), PLAYED_STEPS)):
        for cell in range(plan.num_cells):
            batch = plan.batch(0, step, cell)
            rows.append((step, batch.num_rows, batch.width, int(lengths_N[batch.sample_ids].sum())))
    return Stretch(*np.array(rows, dtype=np.int64).T)


def _both_sides(rank: Rank, loop: DrafterLoop, batch: Batch) -> tuple[float, float]:
    """Seconds of the target's forward and of the drafter's forward and backward."""
    learner, source = loop.learner, loop.source
    rows = learner.rows(batch, rank.data.samples, 0)
    features_BSF, final_BSH = source.take(rows)
    target_seconds = _median(lambda: source.take(rows), rank.device)
    if rows.anchors is None or not len(rows.anchors.rows_A):
        return target_seconds, 0.0
    drafter_seconds = _median(lambda: learner.gradients(rows, features_BSF, final_BSH, False), rank.device)
    return target_seconds, drafter_seconds


def _median(work: Callable[[], object], device: torch.device) -> float:
    """Median seconds of a piece of work, its first repetition left out."""
    work()
    _finish(device)
    taken: list[float] = []
    while len(taken) < REPETITIONS or sum(taken) < SECONDS_PER_SHAPE:
        began = time.perf_counter()
        work()
        _finish(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds_per_byte(device: torch.device) -> float:
    """Of a copy between two GPUs where there are two, else inside this device's memory."""
    other = torch.device("cuda", 1) if device.type == "cuda" and torch.cuda.device_count() > 1 else device
    block = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    return _median(lambda: block.to(other, copy=True), device) / COPIED_BYTES


def _watts(meter: Meter, work: Callable[[], object]) -> float | None:
    """Mean power while something is done; None without a counter."""
    meter.row()
    began = time.perf_counter()
    work()
    joules = meter.row()["energy_joules"]
    return None if joules is None else joules / (time.perf_counter() - began)


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(device)}"
    return f"{torch.get_num_threads()} threads of {platform.processor() or platform.machine()}"
