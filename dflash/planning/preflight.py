"""What can be known before an expensive run starts, each finding in plain words with its remedy.

Each check looks at this machine now. It looks again whenever `fit` has to work, so a machine that changed is not judged
by what was true earlier.
"""

import importlib.metadata
import os
import shutil
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILES_PER_CHECKPOINT = 3
"""Weights and two moments of the optimizer, all float32."""
OLDEST_CLOCK = time.mktime((2026, 1, 1, 0, 0, 0, 0, 0, 0))


@dataclass(frozen=True)
class Need:
    """What a run asks of a machine.

    Attributes:
        kernels: `triton` or `reference`. num_gpus: GPUs on this machine, 0 for a run on the CPU.
        drafter_parameters: numbers of the drafter. kept_checkpoints: on disk at once.
        packet_bytes: of the largest micro-batch. ring_packets: in flight.
    """

    kernels: str
    num_gpus: int
    drafter_parameters: int
    kept_checkpoints: int
    packet_bytes: int
    ring_packets: int

    @property
    def disk_bytes(self) -> int:
        """Checkpoints that are kept, the best, one that is being written, and the result."""
        return 4 * self.drafter_parameters * (FILES_PER_CHECKPOINT * (self.kept_checkpoints + 2) + 1)

    @property
    def memory_bytes(self) -> int:
        """Host memory beside the target: weights, gradients and moments in float32, a copy for saving, and the rings."""
        return 4 * self.drafter_parameters * 8 + self.packet_bytes * self.ring_packets


@dataclass(frozen=True)
class Finding:
    """One check. remedy: what to do where it is not ok."""

    name: str
    ok: bool
    found: str
    remedy: str


def check(
    need: Need, folder: Path, cache: Path, compilers: tuple[str, ...] = ("gcc", "cc", "clang")
) -> list[Finding]:
    """Every finding, good ones too.

    Args:
        need: what the run asks for.
        folder: where checkpoints go. cache: where compiled kernels go.
        compilers: names of C compilers, any of which will do.
    """
    findings = [_disk(need, folder), _memory(need), _clock()]
    if need.kernels == "triton":
        findings += [_compiler(compilers), _headers(), _one_triton(), _cache(cache)]
    if need.num_gpus:
        findings += list(_gpus(need.num_gpus))
    return findings


def _disk(need: Need, folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    return Finding(
        "disk",
        free >= need.disk_bytes,
        f"{free / 1e9:.1f} GB free in {folder}, {need.disk_bytes / 1e9:.2f} GB needed for checkpoints",
        "free space, or lower runtime.keep_checkpoints",
    )


def _memory(need: Need) -> Finding:
    available = _available_memory()
    return Finding(
        "memory",
        available >= need.memory_bytes,
        f"{available / 1e9:.1f} GB of host memory available, {need.memory_bytes / 1e9:.2f} GB needed beside the target",
        "lower batching.budget_tokens, runtime.ring_packets or the drafter's size",
    )


def _available_memory(root: Path = Path("/")) -> int:
    """What the machine has left, or the container or job that this process is in, whichever is less."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        group = root / "sys/fs/cgroup" / line.partition("::")[2].lstrip("/")
        for each in (group, *group.parents):
            limit, used = each / "memory.max", each / "memory.current"
            if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
                available = min(available, int(limit.read_text()) - int(used.read_text()))
    return available


def _clock() -> Finding:
    now = time.time()
    when = time.strftime("%Y-%m-%d", time.localtime(now))
    return Finding(
        "clock",
        now > OLDEST_CLOCK,
        f"it is {when} here",
        "set the clock: ages of files and locks depend on it",
    )


def _compiler(names: tuple[str, ...]) -> Finding:
    found = next((path for name in names if (path := shutil.which(name))), None)
    return Finding(
        "compiler",
        found is not None,
        f"C compiler: {found or 'none'}",
        "install one (apt install gcc); Triton builds its launcher with it",
    )


def _headers() -> Finding:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return Finding(
        "headers",
        header.is_file(),
        f"{header} {'is there' if header.is_file() else 'is missing'}",
        "install Python's headers (apt install python3-dev); Triton's launcher includes them",
    )


def _one_triton() -> Finding:
    names = sorted(
        {
            each.name.lower()
            for each in importlib.metadata.distributions()
            if each.name.lower().startswith(("triton", "pytorch-triton"))
        }
    )
    tritons = [
        name for name in names if name in ("triton", "pytorch-triton", "pytorch_triton", "triton-nightly")
    ]
    return Finding(
        "triton",
        len(tritons) == 1,
        f"installed: {', '.join(tritons) or 'none'}",
        "keep exactly one: pip uninstall the others",
    )


def _cache(cache: Path) -> Finding:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        probe = cache / f".dflash-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return Finding(
            "cache",
            False,
            f"{cache}: {error.strerror}",
            "point TRITON_CACHE_DIR to a local folder that can be written",
        )
    kind = _file_system(cache)
    return Finding(
        "cache",
        not kind.startswith(("nfs", "lustre", "cifs", "fuse.")),
        f"{cache} can be written and lies on {kind}",
        "point TRITON_CACHE_DIR to a local disk: ranks that share a network cache corrupt or stall each other",
    )


def _file_system(path: Path) -> str:
    """The type of the file system that a folder lies on."""
    found = {Path("/"): "unknown"}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        # a later mount hides an earlier one at the same place
        found[Path(mount.replace("\\040", " "))] = kind
    place = path.resolve()
    return next(found[each] for each in (place, *place.parents) if each in found)


def _gpus(number: int) -> Iterator[Finding]:
    import torch

    available = torch.cuda.device_count()
    yield Finding(
        "gpus",
        available >= number,
        f"{available} GPUs, {number} needed",
        "choose a runtime.topology of fewer ranks",
    )
    supported = torch.cuda.get_arch_list()
    for card in range(min(available, number)):
        major, minor = torch.cuda.get_device_capability(card)
        known = any(
            each.removeprefix("sm_").removeprefix("compute_").startswith(f"{major}") for each in supported
        )
        yield Finding(
            f"card {card}",
            known,
            f"{torch.cuda.get_device_name(card)} is sm_{major}{minor}; torch was built for {', '.join(supported)}",
            "install a torch built for this card",
        )
