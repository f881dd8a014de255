"""Ranks on several machines: inside a SLURM job, `srun` starts one launcher a machine.

The rule's script runs once, on the job's first machine, and calls `srun` itself (the job asks for it with the resource
`mpi: srun`; see `profiles/slurm`). `srun` ends with the largest status of its launchers, so "saved, run me again" (75)
and a failure both reach the script.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

from dflash.training.agent import run_agent
from dflash.training.job import Job
from dflash.training.stopping import WALL_TIME_STATUS
from dflash.transfer.roles import Topology

# Launchers meet here; jobs of one machine differ in the last digits of their number.
_FIRST_PORT = 29500
_NUM_PORTS = 1000


def launch_on_nodes(job_path: Path, num_nodes: int) -> int:
    """Run a job on the machines of the SLURM job that this process belongs to; gives its exit status.

    Raises:
        ValueError: this is no SLURM job, it has another number of machines, or a rank failed.
    """
    # SLURM's way to say which job this is; executors keep no more of its environment than that.
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is None:
        raise ValueError(
            f"runtime.num_nodes is {num_nodes}, but this is no SLURM job; run with --workflow-profile profiles/slurm, or set it to 1"
        )
    granted = _nodes_of(job_id)
    if granted != num_nodes:
        raise ValueError(
            f"runtime.num_nodes is {num_nodes}, but SLURM granted {granted} machines; set the nodes of the rule fit in the profile "
            "to the same number"
        )
    endpoint = f"{socket.gethostname()}:{_FIRST_PORT + int(job_id) % _NUM_PORTS}"
    words = [
        "srun",
        f"--nodes={num_nodes}",
        f"--ntasks={num_nodes}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
    ]
    words += [
        sys.executable,
        "-P",
        "-m",
        "dflash.training.nodes",
        str(job_path),
        endpoint,
        f"dflash-{job_id}",
    ]
    status = subprocess.run(words, check=False).returncode
    if status not in (0, WALL_TIME_STATUS):
        raise ValueError(
            f"training on {num_nodes} machines failed with status {status}; the ranks' last words stand above"
        )
    return status


def _nodes_of(job_id: str) -> int:
    """Machines of a running job."""
    asked = subprocess.run(
        ["squeue", "--noheader", "--jobs", job_id, "--format", "%D"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if asked.returncode or not asked.stdout.strip().isdigit():
        raise ValueError(
            f"SLURM does not say how many machines job {job_id} has: {asked.stderr.strip() or asked.stdout.strip()}"
        )
    return int(asked.stdout)


def _be_launcher(job_path: Path, endpoint: str, run_id: str) -> int:
    job = Job.load(job_path)
    try:
        return run_agent(
            job_path, Topology.parse(job.runtime.topology), job.runtime.num_nodes, endpoint, run_id
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(_be_launcher(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
