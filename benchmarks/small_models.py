"""A pipeline of two real processes, one target and one drafter of the demo's size, each pinned to a core with one thread."""

import json
import multiprocessing
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
import torch.distributed as dist

from dflash.batching.description import PlanConfig
from dflash.batching.plan import make_plan, save_plan
from dflash.config.drafter import Anchors, Drafter, Objective
from dflash.config.runtime import Runtime
from dflash.config.target import TargetLoading
from dflash.config.training import Training
from dflash.data.shards import Sample, Shards, write_shard
from dflash.planning.advice import Split, all_splits
from dflash.planning.rates import measure
from dflash.training.job import Job
from dflash.training.joining import Place
from dflash.training.rank import end

TOPOLOGY = "targets: 1, drafters: 1"
NUM_SAMPLES = 4000
NUM_STEPS = 60
FIRST_STEPS = 5
"""Steps that fill the rings and warm both sides up; not counted."""
SPECIAL_TOKENS = 8


@dataclass(frozen=True)
class Ran:
    """Useful tokens/s of the pipeline, and what was predicted from both sides measured alone just before."""

    tokens_per_second: float
    predicted: Split

    @property
    def share(self) -> float:
        """Of min(supply, demand)."""
        return self.tokens_per_second / min(self.predicted.supply, self.predicted.demand)


def prepare(folder: Path, ring_packets: int, anchor_share: float) -> Job:
    """Shards of random tokens whose lengths spread as real ones do, a plan, and a job on the demo target.

    Args:
        anchor_share: of supervised positions; sets how long the drafter takes beside the target.
    """
    folder.mkdir()
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(4.6, 0.8, NUM_SAMPLES), 16, 512).astype(int)
    samples = [
        Sample(
            generator.integers(SPECIAL_TOKENS, 2000, length).astype(np.int32),
            (np.arange(length) >= length // 3).astype(np.uint8),
            int(number == 0),  # one sample is held out
            number,
            number,
        )
        for number, length in enumerate(lengths.tolist())
    ]
    shard = folder / "00000-random.arrow"
    write_shard(shard, samples, {})
    train = Shards([shard], "train")
    config = PlanConfig(budget_tokens=1024, budget_anchors=1024, cells_per_step=4, anchor_share=anchor_share)
    (folder / "plan").mkdir()
    boundaries = [64, 96, 144, 208, 320, 512]
    save_plan(make_plan(train.lengths_N, train.supervised_N, config, boundaries), folder / "plan")
    return Job(
        target="demo",
        target_loading=TargetLoading(dtype="float32"),
        drafter=Drafter(num_layers=2, block_size=8),
        anchors=Anchors(share=anchor_share),
        objective=Objective(labels="data"),
        training=Training(num_steps=NUM_STEPS, heldout_samples=1, compute_dtype="float32"),
        runtime=Runtime(topology=TOPOLOGY, device="cpu", num_threads=2, ring_packets=ring_packets),
        shards=[shard],
        plan=folder / "plan",
        start_from=None,
        state=folder,
        result=folder,
    )


def run(job: Job, folder: Path) -> Ran:
    """Measure both sides alone, then train on both together.

    Raises:
        RuntimeError: a process failed.
    """
    alone, together = (_placed(job, folder / name) for name in ("alone", "together"))
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_measure, args=(alone,))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"measuring ended with {process.exitcode}")
    predicted = Split(**json.loads((alone.result / "split.json").read_text()))
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    ranks = [
        context.Process(target=_rank, args=(together, Place(rank, rank, "localhost", store.port)))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError(f"ranks ended with {[rank.exitcode for rank in ranks]}")
    steps = pl.read_parquet(together.result / "metrics.parquet")["useful_tokens"][FIRST_STEPS:]
    seconds = pl.read_parquet(together.result / "measured" / "seconds.parquet")["seconds"][FIRST_STEPS:]
    return Ran(float(steps.sum() / seconds.sum()), predicted)


def _placed(job: Job, folder: Path) -> Job:
    for name in ("state", "result"):
        (folder / name).mkdir(parents=True)
    return replace(job, state=folder / "state", result=folder / "result")


def _measure(job: Job) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    measured = measure(job)
    splits = all_splits(measured.rates, measured.stretch, 2, measured.total_tokens, measured.rings)
    split = next(split for split in splits if split.topology == TOPOLOGY)
    (job.result / "split.json").write_text(json.dumps(asdict(split)))


def _rank(job: Job, place: Place) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[place.rank % len(cores)]})
    end(job, place)
