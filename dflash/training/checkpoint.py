"""Checkpoints: one safetensors file each, written atomically and beside the step loop.

A file holds the float32 weights, the optimizer's state and, in its header, the position and the identity of the run.
Nothing but safetensors and JSON is ever read back. The newest few are kept, and the best by held-out acceptance.
"""

import errno
import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

WEIGHT, STATE = "weight:", "optimizer:"


@dataclass(frozen=True)
class Position:
    """Where a run stands.

    Attributes:
        step: optimizer steps done, skipped ones included.
        bad_in_a_row: steps skipped just before.
        num_bad: steps skipped in all.
        best_acceptance: best held-out acceptance so far, None before the first evaluation.
        topologies: what the run ran on so far: `[first step, topology]`.
    """

    step: int
    bad_in_a_row: int = 0
    num_bad: int = 0
    best_acceptance: float | None = None
    topologies: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds. identity: nested plain values that must be equal to go on from it."""

    position: Position
    identity: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a file atomically and durably."""
    tensors = {WEIGHT + name: value for name, value in checkpoint.weights.items()}
    tensors |= {STATE + name: value for name, value in checkpoint.optimizer.items()}
    header = json.dumps(
        {"position": asdict(checkpoint.position), "identity": checkpoint.identity}, sort_keys=True
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(
            {name: value.contiguous() for name, value in tensors.items()}, temporary, metadata={"run": header}
        )
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a file back, onto the CPU.

    Raises:
        ValueError: it is no checkpoint.
    """
    tensors: dict[str, dict[str, Tensor]] = {WEIGHT: {}, STATE: {}}
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["run"])
            # Not a dict: it has no iterator.
            for name in file.keys():  # noqa: SIM118
                kind, colon, plain = name.partition(":")
                tensors[kind + colon][plain] = file.get_tensor(name)
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is no readable checkpoint ({error}); remove it to go on from the one before"
        ) from None
    position = Position(
        **{**header["position"], "topologies": [tuple(each) for each in header["position"]["topologies"]]}
    )
    return Checkpoint(position, header["identity"], tensors[WEIGHT], tensors[STATE])


def newest(folder: Path) -> Path | None:
    """The checkpoint with the most steps."""
    return max(folder.glob("step-*.safetensors"), default=None)


def check_same_run(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: Path) -> None:
    """Refuse to go on from a checkpoint of another plan, model or objective.

    Raises:
        ValueError: names every field that differs, with both values.
    """
    differing = [
        f"{name} is {now!r}, was {before!r}"
        for name, (now, before) in _both(ours, theirs).items()
        if now != before
    ]
    if differing:
        raise ValueError(
            f"{path} belongs to another run: {'; '.join(differing)}. Restore the setting, or remove the checkpoints to start anew"
        )


def _both(ours: Mapping[str, Any], theirs: Mapping[str, Any], above: str = "") -> dict[str, tuple[Any, Any]]:
    """Both values of every field by its dotted name."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*ours, *theirs}):
        now, before = ours.get(name), theirs.get(name)
        if isinstance(now, Mapping) and isinstance(before, Mapping):
            found |= _both(now, before, f"{above}{name}.")
        else:
            found[above + name] = (now, before)
    return found


class CheckpointWriter:
    """Writes checkpoints in a thread, one at a time; what cannot be written is said, and training goes on.

    Only the leader has one.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.num_failed = 0
        self._keep = keep
        self._todo: queue.Queue[tuple[Checkpoint, bool] | None] = queue.Queue(maxsize=1)
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a save is in progress."""
        return not self._idle.is_set()

    def save(self, checkpoint: Checkpoint, best: bool = False) -> None:
        """Save a snapshot (its tensors must not change any more). Waits for the save before.

        Args:
            best: keep it as the best so far too.
        """
        self._idle.wait()
        self._idle.clear()
        self._todo.put((checkpoint, best))

    def close(self) -> None:
        """Wait for the last save and end the thread."""
        self._todo.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (task := self._todo.get()) is not None:
            try:
                self._write(*task)
            except (OSError, SafetensorError) as error:
                self.num_failed += 1
                print(
                    f"warning: {_why(error, self.folder)}; training goes on, the checkpoint before stays",
                    file=sys.stderr,
                    flush=True,
                )
            finally:
                self._idle.set()

    def _write(self, checkpoint: Checkpoint, best: bool) -> None:
        step = checkpoint.position.step
        path = self.folder / f"step-{step:09d}.safetensors"
        write_checkpoint(path, checkpoint)
        if best:
            self._replace_best(path, step)
        for old in sorted(self.folder.glob("step-*.safetensors"))[: -self._keep]:
            old.unlink(missing_ok=True)
        for torn in self.folder.glob(".*"):
            torn.unlink(missing_ok=True)

    def _replace_best(self, path: Path, step: int) -> None:
        """Keep a file as the best: a second name, which costs no space."""
        link = self.folder / f"best-{step:09d}.safetensors"
        link.unlink(missing_ok=True)
        os.link(path, link)
        for old in self.folder.glob("best-*.safetensors"):
            if old != link:
                old.unlink()


def _why(error: OSError | SafetensorError, folder: Path) -> str:
    full = (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left" in str(error)
    return (
        f"no space left for a checkpoint in {folder}"
        if full
        else f"a checkpoint in {folder} was not saved ({error})"
    )
