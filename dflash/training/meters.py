"""What a rank measures of itself: seconds of work and of waiting, bytes queued, energy, memory. Unknown is None, never 0."""

import ctypes
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

Activity = Literal["busy", "blocked_empty", "blocked_full"]
_RAPL = Path("/sys/class/powercap")


class Meter:
    """Sums since the last row. `activity` says what the rank does right now, for the watchdog's last words."""

    def __init__(self, device: torch.device, whole_machine: bool) -> None:
        """whole_machine: whether this rank reports the energy of the machine's CPUs, which ranks share."""
        self.activity = "start"
        self.num_changes = 0
        self._device = device
        self._energy = _gpu_energy(device) if device.type == "cuda" else _Rapl() if whole_machine else None
        self._seconds: dict[str, float] = {}
        self._queued: list[int] = []
        self._joules = self._energy.joules() if self._energy else None

    @contextmanager
    def during(self, activity: Activity, what: str) -> Iterator[None]:
        """Count the seconds of a part of the loop. what: in words, for a message if it never ends."""
        self.activity = what
        self.num_changes += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[activity] = self._seconds.get(activity, 0.0) + time.perf_counter() - began
            self.num_changes += 1

    def queued(self, num_bytes: int) -> None:
        """Note how many bytes wait in this rank's ring."""
        self._queued.append(num_bytes)

    def row(self) -> dict[str, Any]:
        """The sums since the last row, and start anew."""
        joules = self._energy.joules() if self._energy else None
        row = {
            **{
                f"{name}_seconds": self._seconds.get(name, 0.0)
                for name in ("busy", "blocked_empty", "blocked_full")
            },
            "queued_bytes": sum(self._queued) / len(self._queued) if self._queued else 0.0,
            "energy_joules": None if joules is None or self._joules is None else joules - self._joules,
            "memory_bytes": _memory_bytes(self._device),
        }
        self._seconds, self._queued, self._joules = {}, [], joules
        return row


def _memory_bytes(device: torch.device) -> int:
    """Most memory that was ever in use: of the GPU's allocator, or of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Rapl:
    """The energy counter of the machine's CPU packages, where the kernel lets us read it."""

    def __init__(self) -> None:
        self._files = [
            path for path in sorted(_RAPL.glob("intel-rapl:?/energy_uj")) if _number(path) is not None
        ]
        self._last = [_number(path) or 0 for path in self._files]
        self._range = [_number(path.with_name("max_energy_range_uj")) or 0 for path in self._files]
        self._total = 0

    def joules(self) -> float | None:
        """Joules since the start; None without a counter."""
        if not self._files:
            return None
        for place, path in enumerate(self._files):
            now = _number(path) or self._last[place]
            # The counter starts again at 0.
            passed = now - self._last[place]
            self._total += passed if passed >= 0 else passed + self._range[place]
            self._last[place] = now
        return self._total / 1e6


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


class _Nvml:
    """The energy counter of a GPU (Volta and newer), in the driver's own library."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    def joules(self) -> float | None:
        """Joules since the driver was loaded; None where the card has no counter."""
        millijoules = ctypes.c_ulonglong()
        failed = self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(millijoules))
        return None if failed else millijoules.value / 1e3


def _gpu_energy(device: torch.device) -> _Nvml | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle = ctypes.c_void_p()
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
        return None
    return _Nvml(library, handle)
