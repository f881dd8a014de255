"""From a job to its ranks: what is checked before anything is loaded, and how the processes start."""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from dflash.model.device import device_of
from dflash.store.lease import acquire
from dflash.training.agent import run_agent
from dflash.training.job import Job
from dflash.training.nodes import launch_on_nodes
from dflash.training.rank import run_rank
from dflash.training.stopping import Stopping
from dflash.transfer.roles import Topology

# Another training on the same card is waited for; it may take days.
_CARD_WAIT_SECONDS = 14 * 86400.0


def launch(job: Job) -> int:
    """Run a job; gives its exit status: 0, 75 (saved, run me again) or 143 (saved because of a signal).

    Raises:
        ValueError: the topology does not fit this machine, or a rank failed.
    """
    topology = Topology.parse(job.runtime.topology)
    check_machine(job, topology)
    with cards(job, topology):
        if topology.num_ranks == 1:
            stopping = Stopping(job.runtime.wall_time_seconds)
            stopping.listen()
            return run_rank(job, None, stopping)
        return _launch_ranks(job, topology)


def check_machine(job: Job, topology: Topology) -> None:
    """Refuse more ranks than GPUs.

    Raises:
        ValueError: with both numbers.
    """
    needed = topology.local_ranks(job.runtime.num_nodes)
    if device_of(job.runtime.device, 0).type != "cuda":
        return
    available = torch.cuda.device_count()
    if available < needed:
        raise ValueError(
            f"runtime.topology '{topology}' needs {needed} GPUs on every machine, but {available} can be used here; choose fewer ranks, "
            "or runtime.device: cpu"
        )


@contextmanager
def cards(job: Job, topology: Topology) -> Iterator[None]:
    """Hold the lock of every GPU that the ranks of this machine use."""
    with ExitStack() as held:
        if device_of(job.runtime.device, 0).type == "cuda":
            folder = Path(tempfile.gettempdir()) / "dflash-cards"
            for number in range(topology.local_ranks(job.runtime.num_nodes)):
                card = torch.cuda.get_device_properties(number).uuid
                held.callback(acquire(folder / f"{card}.lock", "a training", _CARD_WAIT_SECONDS).release)
        yield


def _launch_ranks(job: Job, topology: Topology) -> int:
    path = job.state / "job.json"
    job.save(path)
    if job.runtime.num_nodes > 1:
        return launch_on_nodes(path, job.runtime.num_nodes)
    return run_agent(path, topology, 1, "localhost:0", uuid.uuid4().hex)
