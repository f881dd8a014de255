"""The launcher of one machine's ranks: torchrun's agent, in this process."""

import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dflash.training.stopping import SIGNAL_STATUS, WALL_TIME_STATUS
from dflash.transfer.roles import Topology


def run_agent(job_path: Path, topology: Topology, num_nodes: int, endpoint: str, run_id: str) -> int:
    """Start this machine's ranks and wait for them; gives the exit status of the run.

    Args:
        job_path: the job that every rank reads.
        num_nodes: machines; each runs this function.
        endpoint: `host:port` where they meet; port 0 on a single machine.
        run_id: the same on all machines.

    Raises:
        ValueError: a rank failed.
    """
    config = LaunchConfig(
        min_nodes=num_nodes,
        max_nodes=num_nodes,
        nproc_per_node=topology.local_ranks(num_nodes),
        run_id=run_id,
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        max_restarts=0,
        monitor_interval=0.2,
        shutdown_timeout=30,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "dflash.training.rank", str(job_path), str(os.getpid()))
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
