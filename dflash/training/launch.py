"""From a job to its ranks: what is checked before anything is loaded, and how the processes start."""

import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dflash.store.lease import acquire
from dflash.training.job import Job
from dflash.training.rank import device_of, run_rank
from dflash.training.stopping import SIGNAL_STATUS, WALL_TIME_STATUS, Stopping
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
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=topology.num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
        shutdown_timeout=30,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "dflash.training.rank", str(path))
    except ChildFailedError as error:
        statuses = {failure.exitcode for failure in error.failures.values()}
        for status in (WALL_TIME_STATUS, SIGNAL_STATUS):
            if status in statuses:
                return status
        who = "; ".join(
            f"{topology.name(number)} ended with {failure.exitcode}"
            for number, failure in sorted(error.failures.items())
        )
        raise ValueError(f"training failed: {who}; its last words stand above") from None
    except SignalException:
        return SIGNAL_STATUS
    return 0
