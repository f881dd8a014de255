"""Asking for a stage afresh, and dropping from the store what no current result refers to."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.store.canonical import read_json
from dflash.store.entry import Entry
from dflash.store.lease import acquire, holder_of
from dflash.store.request import RESULTS, RUN_LOCK, STORE


@dataclass(frozen=True)
class Unreferenced:
    """A folder of the store that no current result refers to."""

    folder: Path
    bytes: int
    unfinished: bool
    spent_seconds: float


def ask_afresh(stage: str, experiment: str | None) -> list[str]:
    """Mark a stage's current results so that the next run ignores them once.

    Args:
        stage: name of the stage.
        experiment: one experiment, or None for all.

    Returns:
        The published results that will be made again.

    Raises:
        ValueError: the stage has no published result, or somebody works on it.
    """
    marked = []
    for path, record in published():
        parts = path.relative_to(RESULTS).parts
        if record["stage"] != stage or (experiment and parts[0] != experiment):
            continue
        entry = Entry(STORE, stage, record["key"])
        if holder := holder_of(entry.lock):
            raise ValueError(
                f"{stage}: process {holder['pid']} on {holder['host']} works on it; wait for it or end it"
            )
        if entry.record() is not None:
            entry.fresh_mark.touch()
            marked.append("/".join(part for part in path.with_suffix("").parts if part != ".request"))
    if not marked:
        whose = f"{experiment} has" if experiment else "no experiment has"
        known = ", ".join(sorted({record["stage"] for _, record in published()})) or "none"
        raise ValueError(f"{whose} a published result of {stage!r} to ignore; stages with one: {known}")
    return marked


def published() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every record of a published result."""
    for path in sorted(RESULTS.rglob(".request/**/*.published")):
        record = read_json(path)
        if record is not None:
            yield path, record


def unreferenced(with_unfinished: bool) -> list[Unreferenced]:
    """What `gc` would drop: never what a current result refers to, a locked folder, or (unless asked) unfinished work."""
    kept: set[Path] = set()
    for _, record in published():
        entry = Entry(STORE, record["stage"], record["key"])
        kept.add(entry.folder)
        kept.update(STORE / memo for memo in (entry.record() or {"memos": []})["memos"])
    found = []
    for folder in sorted(each for each in STORE.glob("*/*") if each.is_dir()):
        unfinished = not (folder / "entry.json").exists() and any((folder / "state").glob("*"))
        if folder in kept or holder_of(folder / "lock") or (unfinished and not with_unfinished):
            continue
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        found.append(
            Unreferenced(
                folder,
                size,
                unfinished,
                float((read_json(folder / "spent.json") or {"seconds": 0})["seconds"]),
            )
        )
    return found


def collect(with_unfinished: bool, dry_run: bool) -> list[Unreferenced]:
    """Drop what no current result refers to; no run may be active meanwhile.

    Raises:
        HeldError: a run works in this folder.
    """
    if dry_run:
        return unreferenced(with_unfinished)
    lease = acquire(RUN_LOCK, "dflash gc")
    try:
        found = unreferenced(with_unfinished)
        for each in found:
            # The finished mark goes first, so that a killed gc leaves no half of a result.
            (each.folder / "entry.json").unlink(missing_ok=True)
            shutil.rmtree(each.folder)
    finally:
        lease.release()
    return found
