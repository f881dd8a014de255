"""A real SLURM of two nodes on this machine: munged, slurmctld and two slurmd, from Debian's packages.

Needs root and the packages `slurm-wlm` and `munge`. No accounting database and no cgroups; both nodes are this
host on different ports. Everything lies in one folder and is ended by `stop`.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

DEFAULT_CONFIG = Path("/etc/slurm/slurm.conf")
"""Where commands inside a job look: executors hand no variables of SLURM down to it."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "srun", "sbatch")
START_SECONDS = 60


def missing() -> str | None:
    """Why no cluster can be started here, or None."""
    if os.geteuid() != 0:
        return "a local SLURM needs root"
    if DEFAULT_CONFIG.exists():
        return f"{DEFAULT_CONFIG} exists: this machine belongs to a cluster"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{absent[0]} is not installed (packages slurm-wlm and munge)" if absent else None


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its folder, and the environment in which its commands work."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, timeout: float = 60) -> str:
        """Run a command of SLURM and give what it printed."""
        done = subprocess.run(
            command, env=self.environment, timeout=timeout, capture_output=True, text=True, check=True
        )
        return done.stdout

    def kill_node(self, name: str) -> None:
        """End a node's daemon and every process of its jobs at once, as a power cut would."""
        _end(self.folder / f"slurmd-{name}.pid", signal.SIGKILL)
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"SLURMD_NODENAME={name}".encode() in environment:
                os.kill(int(process.name), signal.SIGKILL)

    def start_node(self, name: str) -> None:
        """Bring a node back."""
        subprocess.run(
            ["slurmd", "-N", name, "-f", self.folder / "slurm.conf"],
            env=self.environment,
            check=True,
            timeout=30,
        )
        subprocess.run(
            ["scontrol", "update", f"nodename={name}", "state=resume"], env=self.environment, timeout=30
        )

    def stop(self) -> None:
        """End all daemons and leave the machine without a cluster."""
        DEFAULT_CONFIG.unlink(missing_ok=True)
        for pid_file in [
            *self.folder.glob("slurmd-*.pid"),
            self.folder / "slurmctld.pid",
            self.folder / "munged.pid",
        ]:
            _end(pid_file, signal.SIGTERM)


def start(folder: Path, ports: tuple[int, int, int]) -> Cluster:
    """Start the cluster in an empty folder.

    Args:
        folder: for the configuration, state, logs and pid files.
        ports: of the controller and of the two nodes.

    Raises:
        TimeoutError: the nodes did not become idle; names the folder with the logs.
    """
    host = socket.gethostname().split(".")[0]
    _start_munge(folder)
    nodes = "\n".join(
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000"
        for number, port in enumerate(ports[1:], start=1)
    )
    (folder / "slurm.conf").write_text(
        f"""ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
    )
    DEFAULT_CONFIG.unlink(missing_ok=True)
    DEFAULT_CONFIG.parent.mkdir(exist_ok=True)
    DEFAULT_CONFIG.symlink_to(folder / "slurm.conf")
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    cluster = Cluster(folder, environment)
    subprocess.run(["slurmctld", "-f", folder / "slurm.conf"], env=environment, check=True, timeout=30)
    for name in ("n1", "n2"):
        subprocess.run(
            ["slurmd", "-N", name, "-f", folder / "slurm.conf"], env=environment, check=True, timeout=30
        )
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        state = subprocess.run(
            ["sinfo", "-h", "-o", "%T %D"], env=environment, capture_output=True, text=True, timeout=30
        )
        if state.stdout.strip() == "idle 2":
            return cluster
        time.sleep(0.5)
    cluster.stop()
    raise TimeoutError(
        f"the nodes did not become idle in {START_SECONDS} s: {state.stdout}{state.stderr}; logs lie in {folder}"
    )


def _start_munge(folder: Path) -> None:
    for name in ("state", "spool-n1", "spool-n2", "munge-log"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    # root may run it with --force though the folders are not munge's own
    subprocess.run(
        [
            "munged",
            "--force",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munge-log/munged.log",
            f"--seed-file={folder}/munge.seed",
        ],
        check=True,
        timeout=30,
        capture_output=True,
    )


def _end(pid_file: Path, how: signal.Signals) -> None:
    try:
        os.kill(int(pid_file.read_text()), how)
    except (FileNotFoundError, ProcessLookupError):
        return
