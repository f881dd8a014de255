"""What a measured rate depends on beside code and settings: the machine's processors and GPUs, told without torch."""

import os
from collections import Counter
from pathlib import Path

_GPUS = Path("/proc/driver/nvidia/gpus")
_CPUS = Path("/proc/cpuinfo")


def machine(cpus: Path = _CPUS, gpus: Path = _GPUS) -> list[str]:
    """Processors that this process may use, then GPUs by model, each as `count x name`.

    Args:
        cpus, gpus: where Linux and NVIDIA's driver list them; what is not there is left out.
    """
    names = _values(cpus, "model name") or ["processor"]
    models = Counter(name for each in sorted(gpus.glob("*/information")) for name in _values(each, "Model"))
    return [
        f"{len(os.sched_getaffinity(0))} x {names[0]}",
        *(f"{count} x {name}" for name, count in sorted(models.items())),
    ]


def _values(path: Path, key: str) -> list[str]:
    """Values of the lines `key : value` of a file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    pairs = [line.partition(":") for line in lines]
    return [value.strip() for name, _, value in pairs if name.strip() == key]
