"""One key's folder in the store: the finished result, or the state of a piece of work that was interrupted.

.store/STAGE/KEY/
    components.json   what the key is made of
    lock              while somebody works here
    spent.json        seconds of work so far, over all attempts
    work/             result in the making; cleared when work starts again
    state/            checkpoints of unfinished work; survives crashes
    result/           finished files
    entry.json        the finished mark: manifest, measured times, versions
    stat.json         what `stat` said of the finished files when their content was last looked at
    fresh             on request: ignore the result once
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash.store.canonical import digest_of, read_json, write_json
from dflash.store.content import differing, sha256_of, stat_of

# Raised when the store's own layout or the making of keys changes.
FORMAT = 1
MEASURED = "measured"


def files_under(folder: Path) -> Iterator[str]:
    """Names of all files under a folder, relative to it, sorted."""
    if folder.is_dir():
        yield from sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


class Entry:
    """The folder of one key."""

    def __init__(self, store: Path, stage: str, key: str) -> None:
        self.stage = stage
        self.key = key
        self.folder = store / stage / key[:32]
        self.result = self.folder / "result"
        self.state = self.folder / "state"
        self.work = self.folder / "work"
        self.lock = self.folder / "lock"
        self.fresh_mark = self.folder / "fresh"
        self._mark = self.folder / "entry.json"
        self._stats = self.folder / "stat.json"

    def record(self) -> dict[str, Any] | None:
        """The finished mark, or None while there is no finished result."""
        record = read_json(self._mark)
        return record if isinstance(record, dict) else None

    def damaged_files(self) -> list[str]:
        """Finished files that are missing or hold something else than when they were made."""
        record = self.record()
        if record is None:
            return []
        stats = read_json(self._stats) or {}
        digests = {name: each["sha256"] for name, each in record["manifest"]["files"].items()}
        bad = differing(self.result, stats, digests)
        if not bad:
            now = {name: stat_of(self.result / name) for name in digests}
            if now != stats:
                write_json(self._stats, now)
        return bad

    def drop(self) -> None:
        """Remove the finished result; the mark goes first."""
        self._mark.unlink(missing_ok=True)
        shutil.rmtree(self.result, ignore_errors=True)
        shutil.rmtree(self.state, ignore_errors=True)

    def begin(self, components: Mapping[str, Any]) -> None:
        """Prepare the folders for work."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.state.mkdir(exist_ok=True)
        write_json(self.folder / "components.json", dict(components))

    def finish(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Make the work the result, and write the mark last. Returns the record."""
        files = {}
        for name in files_under(self.work):
            path = self.work / name
            if not name.startswith(MEASURED + "/"):
                files[name] = {"sha256": sha256_of(path), "bytes": path.stat().st_size}
        content = digest_of({name: each["sha256"] for name, each in files.items()})
        manifest = {
            "format": FORMAT,
            "stage": self.stage,
            "key": self.key,
            "content": content,
            "files": files,
        }
        self._mark.unlink(missing_ok=True)
        shutil.rmtree(self.result, ignore_errors=True)
        os.replace(self.work, self.result)
        write_json(self._stats, {name: stat_of(self.result / name) for name in files})
        adopted = read_json(self.folder / "adopted.json")
        record = {**facts, **({"adopted": adopted} if adopted else {}), "manifest": manifest}
        write_json(self._mark, record)
        self.fresh_mark.unlink(missing_ok=True)
        shutil.rmtree(self.state, ignore_errors=True)
        return record

    def spent_seconds(self) -> float:
        """Seconds of work that went into this key so far."""
        spent = read_json(self.folder / "spent.json")
        return float(spent["seconds"]) if spent else 0.0

    def spend(self, seconds: float) -> None:
        """Record the seconds of work so far."""
        write_json(self.folder / "spent.json", {"seconds": round(seconds, 3)})
