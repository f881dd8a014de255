"""What is in a file: sha256, remembered under what `stat` says of it, and copies that share no inode."""

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from dflash.store.canonical import read_json, write_json

STAT_FIELDS = 4
# A file changed so shortly before it was hashed could change again within one tick of the file system's clock.
RACY_NS = 100_000_000
PROGRESS_BYTES = 1 << 30
CHUNK_BYTES = 1 << 22
# Linux's ioctl that makes a copy share its blocks, never its inode, with the original (btrfs, xfs).
FICLONE = 0x40049409


def stat_of(path: Path) -> list[int]:
    """Inode, size, mtime and ctime in ns: what must differ once a file's content does."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def sha256_of(path: Path) -> str:
    """sha256 of a file's content; files over 1 GiB show their progress on stderr."""
    hasher = hashlib.sha256()
    size = path.stat().st_size
    done, shown = 0, time.monotonic()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
            done += len(chunk)
            if size > PROGRESS_BYTES and time.monotonic() - shown > 2:
                shown = time.monotonic()
                print(
                    f"hashing {path}: {done / size:.0%} of {size / 1e9:.1f} GB", file=sys.stderr, flush=True
                )
    return hasher.hexdigest()


class ContentIndex:
    """The sha256 of files, computed again only when `stat` differs.

    One process writes an index at a time; a lost update costs a hash, never correctness.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        known = read_json(path)
        self._known: dict[str, list[int | str]] = known if isinstance(known, dict) else {}
        self._changed = False

    def sha256(self, path: Path) -> str:
        """sha256 of a file. Raises OSError if it cannot be read."""
        name = str(path)
        before = stat_of(path)
        remembered = self._known.get(name)
        if remembered and remembered[:STAT_FIELDS] == before:
            return str(remembered[STAT_FIELDS])
        digest = sha256_of(path)
        if stat_of(path) != before:
            raise OSError(f"{path} changed while it was read; run again when it is complete")
        if time.time_ns() - max(before[2], before[3]) > RACY_NS:
            self._known[name] = [*before, digest]
            self._changed = True
        return digest

    def save(self) -> None:
        """Write the index if it learned something."""
        if self._changed:
            write_json(self._path, self._known)
            self._changed = False


def is_unchanged(path: Path, stat: list[int] | None, sha256: str) -> bool:
    """Whether a file still has a content, looking inside only when `stat` differs from the recorded one."""
    try:
        return stat_of(path) == stat or sha256_of(path) == sha256
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def differing(folder: Path, stats: Mapping[str, list[int]], digests: Mapping[str, str]) -> list[str]:
    """The files under a folder, of those in `digests`, that are missing or hold something else."""
    return [
        name for name, sha256 in digests.items() if not is_unchanged(folder / name, stats.get(name), sha256)
    ]


def copy_file(source: Path, destination: Path) -> None:
    """Copy a file, sharing blocks where the file system can, never the inode; whole or not at all."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}.tmp")
    with source.open("rb") as reader, temporary.open("wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
        except OSError:
            # The file system cannot share blocks.
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)
    os.replace(temporary, destination)
