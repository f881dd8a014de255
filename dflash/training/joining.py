"""Where a rank stands, and how it is joined with the others."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from dflash.transfer.channel import Link
from dflash.transfer.roles import Topology

# Loading a large target, or making kernels, may take this long on one rank while others wait for it.
_LOADING_TIMEOUT = timedelta(hours=2)
_JOIN_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Place:
    """A rank of a run of several. host, port: of the launcher's store."""

    rank: int
    local_rank: int
    host: str
    port: int

    @staticmethod
    def from_launcher() -> "Place":
        """The place that torchrun gave this process; its way to say so is the environment."""
        given = os.environ
        return Place(
            int(given["RANK"]), int(given["LOCAL_RANK"]), given["MASTER_ADDR"], int(given["MASTER_PORT"])
        )

    def store(self) -> TCPStore:
        """A new connection to the launcher's store."""
        return TCPStore(self.host, self.port, is_master=False, timeout=_JOIN_TIMEOUT)


@dataclass(frozen=True)
class Joined:
    """The groups of a run.

    Attributes:
        everyone: all ranks, on the CPU. link: of packets. drafters: who sum gradients, None for a single drafter.
    """

    everyone: dist.ProcessGroup
    link: Link
    drafters: dist.ProcessGroup | None


def join(
    place: Place, topology: Topology, device: torch.device, timeout: timedelta, through_host: bool
) -> Joined:
    """Join the ranks. All must call this with the same arguments.

    Args:
        through_host: packets between GPUs go through the CPU's memory.
    """
    store = PrefixStore("dflash/groups", place.store())
    dist.init_process_group(
        "gloo", store=store, rank=place.rank, world_size=topology.num_ranks, timeout=_JOIN_TIMEOUT
    )
    direct = device.type == "cuda" and not through_host
    everyone = dist.new_group(timeout=_LOADING_TIMEOUT, backend="gloo")
    credit_group = dist.new_group(timeout=timeout, backend="gloo")
    data_group = dist.new_group(timeout=timeout, backend="nccl" if direct else "gloo")
    drafters = None
    if topology.num_drafters > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        drafters = dist.new_group(topology.drafter_ranks, timeout=timeout, backend=backend)
    assert everyone is not None and credit_group is not None and data_group is not None
    packets_at = device if direct else torch.device("cpu")
    return Joined(everyone, Link(data_group, credit_group, packets_at, timeout), drafters)
