"""What a rank is made of, and the loops that are built from it."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from dflash.kernels.anchor_attention import Backend
from dflash.model.drafter import Drafter
from dflash.model.target import Target, compute_dtype
from dflash.training.checkpoint import Checkpoint, Position
from dflash.training.drafter_loop import DrafterLoop
from dflash.training.features import FeatureSource, LocalTarget
from dflash.training.job import Job
from dflash.training.joining import Joined
from dflash.training.leader import Leader
from dflash.training.log import Log
from dflash.training.meters import Meter
from dflash.training.micro_batch import Learner, Rows
from dflash.training.optimizer import Optimizer, OptimizerSettings
from dflash.training.schedule import Schedule
from dflash.training.stopping import Stopping
from dflash.training.target_loop import ReceivedFeatures, TargetLoop, expected_packets
from dflash.training.world import Data, TargetEnds, objective_of, rules_of
from dflash.transfer.channel import PacketReceiver, PacketSender
from dflash.transfer.packet import PacketLayout, ring_size
from dflash.transfer.roles import Topology


@dataclass(frozen=True)
class Rank:
    """What every part of a rank uses.

    Attributes:
        joined: None for the only rank of a run. target: None on a rank that only trains.
        identity: see `world.identity_of`. machine: see `devices.machine`.
    """

    job: Job
    topology: Topology
    number: int
    device: torch.device
    joined: Joined | None
    meter: Meter
    stopping: Stopping
    data: Data
    ends: TargetEnds
    target: Target | None
    drafter: Drafter
    identity: dict[str, Any]
    machine: dict[str, Any]

    @property
    def final(self) -> bool:
        """Whether the objective needs the target's final states."""
        return self.job.objective.labels != "data"

    @property
    def splits(self) -> bool:
        """Whether micro-batches that do not fit are split."""
        return self.job.runtime.on_out_of_memory == "auto_reduce"

    @property
    def layout(self) -> PacketLayout:
        """Of packets."""
        config = self.drafter.config
        hidden = config.hidden_size if self.final else 0
        return PacketLayout(len(config.taps) * config.hidden_size, hidden, self.ends.embedding_VH.dtype)

    def local_target(self) -> LocalTarget:
        """The target in this process."""
        assert self.target is not None
        return LocalTarget(self.target, self.drafter.config.taps, self.final, self.splits)

    def log(self, name: str) -> Log:
        """A log of this rank."""
        return Log(self.job.state / "log" / f"{name}-{self.number:03d}.jsonl")

    def slots(self, num_peers: int) -> tuple[int, int]:
        """Slots of this rank's ring, and elements of each."""
        runtime = self.job.runtime
        size = self.layout.size(*self.data.largest)
        return ring_size(
            size * self.layout.dtype.itemsize, runtime.ring_packets * num_peers, runtime.ring_bytes
        ), size


@dataclass(frozen=True)
class MeteredTarget:
    """A colocated rank's target: its work counts as busy."""

    source: LocalTarget
    meter: Meter

    def take(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """See `LocalTarget.take`."""
        with self.meter.during("busy", "the target's forward"):
            return self.source.take(rows)

    def release(self) -> None:
        """Nothing is held."""


def target_loop(rank: Rank) -> TargetLoop:
    """The loop of a target rank."""
    assert rank.joined is not None
    slots, size = rank.slots(1)
    sender = PacketSender(rank.joined.link, slots, size, rank.layout.dtype)
    data = rank.data
    return TargetLoop(
        rank.number,
        rank.topology,
        rank.local_target(),
        sender,
        rank.layout,
        data.samples,
        data.heldout,
        rank.meter,
        rank.log("ranks"),
    )


def drafter_loop(rank: Rank, first: int, checkpoint: Checkpoint | None) -> DrafterLoop:
    """The loop of a drafter, at a checkpoint."""
    training, topology = rank.job.training, rank.topology
    number = topology.drafter_ranks.index(rank.number)
    optimizer = Optimizer(
        rank.drafter.named_parameters(),
        OptimizerSettings(training.optimizer, training.weight_decay, training.betas, training.clip_norm),
    )
    position = Position(0)
    if checkpoint is not None:
        position = checkpoint.position
        rank.drafter.load_state_dict(dict(checkpoint.weights))
        optimizer.restore(checkpoint.optimizer)
    if not position.topologies or position.topologies[-1][1] != str(topology):
        position = Position(
            **{**vars(position), "topologies": [*position.topologies, (first, str(topology))]}
        )
    return DrafterLoop(
        drafter=number,
        num_drafters=topology.num_drafters,
        num_cells=rank.data.plan.num_cells,
        learner=_learner(rank),
        optimizer=optimizer,
        schedule=Schedule(
            training.learning_rate,
            training.final_learning_rate_share,
            training.warmup_share,
            rank.data.stream.num_steps,
        ),
        source=_source(rank, number, first),
        samples=rank.data.samples,
        heldout=rank.data.heldout,
        group=None if rank.joined is None else rank.joined.drafters,
        timeout=timedelta(seconds=rank.job.runtime.wait_timeout_seconds),
        meter=rank.meter,
        stopping=rank.stopping,
        consumed=rank.log("samples"),
        splits=rank.splits,
        max_bad_steps=training.max_bad_steps,
        position=position,
    )


def leader_of(rank: Rank, loop: DrafterLoop) -> Leader:
    """The recorder of a run."""
    runtime = rank.job.runtime
    return Leader(
        loop=loop,
        samples=rank.data.samples,
        state=rank.job.state,
        identity=rank.identity,
        num_steps=rank.data.stream.num_steps,
        keep_checkpoints=runtime.keep_checkpoints,
        save_interval_seconds=runtime.save_interval_seconds,
        progress_interval_seconds=runtime.progress_interval_seconds,
    )


def _learner(rank: Rank) -> Learner:
    training = rank.job.training
    return Learner(
        drafter=rank.drafter,
        embedding_VH=rank.ends.embedding_VH,
        head=rank.ends.head,
        objective=objective_of(rank.job),
        rules=rules_of(rank.job),
        compute_dtype=compute_dtype(training.compute_dtype, rank.device),
        backend=_backend(training.kernels),
    )


def _backend(kernels: str) -> Backend:
    """`auto` is the reference on every device until the Triton kernels are proved on a GPU."""
    return "triton" if kernels == "triton" else "reference"


def _source(rank: Rank, drafter: int, first: int) -> FeatureSource:
    if rank.topology.colocated:
        return MeteredTarget(rank.local_target(), rank.meter)
    assert rank.joined is not None
    group = rank.topology.group_of_drafter(drafter)
    slots, size = rank.slots(len(rank.topology.targets_of(group)))
    expected = expected_packets(rank.data.stream.steps(first), drafter, rank.layout)
    receiver = PacketReceiver(rank.joined.link, slots, size, rank.layout.dtype, expected)
    return ReceivedFeatures(receiver, rank.layout, rank.meter)
