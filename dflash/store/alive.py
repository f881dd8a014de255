"""Processes by more than their number: who holds a lock, and whether a launcher is gone."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """What identifies this process among all processes of all machines that share a folder."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> dict[str, Any]:
    """What identifies a running process of this machine."""
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid_space": _pid_space(),
        "pid": pid,
        "started": _started(pid),
    }


def is_gone(process: Mapping[str, Any]) -> bool | None:
    """Whether a process has ended; None where that cannot be seen from here (another machine or container)."""
    if process["host"] != socket.gethostname():
        return None
    if process["boot"] != _boot():
        # The machine was started again since, unless two machines share a name.
        return True if process["pid_space"] == _pid_space() else None
    if process["pid_space"] != _pid_space():
        return None
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # It exists and belongs to somebody else.
        return process["started"] != _started(process["pid"])
    return process["started"] != _started(process["pid"])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot; it tells a reused number from the old process.

    Empty where it is unknown, "ended" for a zombie, which holds nothing any more.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if fields[0] == "Z" else fields[19]
