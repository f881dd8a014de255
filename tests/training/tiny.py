"""A tiny training in a temporary folder: target, shards, plan; ranks as forks of a process that has imported everything, which start in no time."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dflash.batching.description import PlanConfig
from dflash.batching.plan import make_plan, save_plan
from dflash.config.drafter import Anchors, Drafter, Objective
from dflash.config.runtime import Runtime
from dflash.config.target import TargetLoading
from dflash.config.training import Training
from dflash.data.shards import Sample, Shards, write_shard
from dflash.training.job import Job
from dflash.training.joining import Place
from dflash.training.rank import end, run_rank
from dflash.training.stopping import Stopping
from dflash.transfer.roles import Topology

Tensors = tuple[np.ndarray, np.ndarray]

VOCABULARY = 64
RUN_SECONDS = 100


POISON = VOCABULARY - 2
"""A token whose embedding a poisoned target has lost to infinity."""


def make_target(folder: Path, poisoned: bool = False) -> None:
    """A random target of four layers with a tokenizer of its own."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=2,
        tie_word_embeddings=not poisoned,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
        if poisoned:
            model.get_input_embeddings().weight[POISON] = float("inf")
    model.save_pretrained(folder)
    words = {
        "<pad>": 0,
        "<unk>": 1,
        "<end>": 2,
        **{f"w{number}": number for number in range(3, VOCABULARY - 1)},
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>").save_pretrained(
        folder
    )


def make_shards(
    path: Path, num_samples: int = 48, change: Callable[[int, Tensors], Tensors] = lambda row, sample: sample
) -> None:
    """Texts that follow a rule, so that there is something to learn: each token is the one before plus a step.

    Args:
        change: gets a sample's number, ids and mask, and gives what is written instead.
    """
    generator = np.random.default_rng(0)
    samples = []
    for row in range(num_samples):
        length = int(generator.integers(6, 24))
        ids = (3 + (generator.integers(0, 50) + np.arange(length) * generator.integers(1, 4)) % 50).astype(
            np.int32
        )
        ids, mask = change(row, (ids, (np.arange(length) >= 2).astype(np.uint8)))
        samples.append(Sample(ids, mask, 1 if row % 8 == 0 else 0, 1000 + row, row))
    write_shard(path, samples, {})


class World:
    """Everything that a training reads, made once."""

    def __init__(
        self,
        folder: Path,
        poisoned: bool = False,
        change: Callable[[int, Tensors], Tensors] = lambda row, sample: sample,
    ) -> None:
        self.folder = folder
        make_target(folder / "target", poisoned)
        make_shards(folder / "00000-tiny.arrow", change=change)
        train = Shards([folder / "00000-tiny.arrow"], "train")
        config = PlanConfig(budget_tokens=64, budget_anchors=64, cells_per_step=3)
        (folder / "plan").mkdir()
        save_plan(make_plan(train.lengths_N, train.supervised_N, config, [8, 16, 24]), folder / "plan")

    def job(self, name: str, topology: str = "colocated: 1", **changes: Any) -> Job:
        """A job with its own state and result; changes by setting, nested by section."""
        state, result = self.folder / name / "state", self.folder / name / "result"
        for each in (state, result):
            each.mkdir(parents=True, exist_ok=True)
        runtime = {
            "topology": topology,
            "device": "cpu",
            "num_threads": 1,
            "wait_timeout_seconds": 20.0,
            "progress_interval_seconds": 0.5,
        }
        training = {
            "num_steps": 12,
            "learning_rate": 0.01,
            "heldout_interval_steps": 5,
            "heldout_samples": 4,
            "compute_dtype": "float32",
        }
        return Job(
            target=str(self.folder / "target"),
            target_loading=TargetLoading(dtype="float32"),
            drafter=Drafter(num_layers=1, block_size=4, num_taps=1, **changes.get("drafter", {})),
            anchors=Anchors(**changes.get("anchors", {})),
            objective=Objective(**changes.get("objective", {})),
            training=Training(**{**training, **changes.get("training", {})}),
            runtime=Runtime(**{**runtime, **changes.get("runtime", {})}),
            shards=[self.folder / "00000-tiny.arrow"],
            plan=changes.get("plan", self.folder / "plan"),
            start_from=changes.get("start_from"),
            state=state,
            result=result,
        )


def start(job: Job) -> tuple[list[ForkServerProcess], Any]:
    """Start the ranks of a job, and the store that a launcher would hold."""
    context = multiprocessing.get_context("forkserver")
    # A clean process that has imported everything and used nothing, so that its forks are safe.
    context.set_forkserver_preload(["dflash.training.rank", "transformers.models.qwen3.modeling_qwen3"])
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    processes = []
    for rank in range(Topology.parse(job.runtime.topology).num_ranks):
        place = Place(rank, rank, "localhost", store.port)
        processes.append(context.Process(target=end, args=(job, place)))
        processes[-1].start()
    return processes, store


def finish(processes: Sequence[ForkServerProcess], seconds: float = RUN_SECONDS) -> list[int | None]:
    """Wait for the ranks; what still runs after `seconds` is killed. Gives the exit codes."""
    for process in processes:
        process.join(seconds)
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
            raise AssertionError(f"{process.name} was still running after {seconds} s")
    return [process.exitcode for process in processes]


def train(job: Job) -> list[int | None]:
    """Run a job: in this process where it has one rank, else as forked ranks."""
    if Topology.parse(job.runtime.topology).num_ranks == 1:
        return [run_rank(job, None, Stopping(job.runtime.wall_time_seconds))]
    processes, store = start(job)
    try:
        return finish(processes)
    finally:
        del store


def kill(process: ForkServerProcess) -> None:
    """kill -9."""
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
