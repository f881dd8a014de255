"""A lock that also holds on network file systems: a file made exclusively, with its holder and a heartbeat.

Whatever ends the holder (kill -9, power), nobody has to clear anything: on the same machine the holder's process is
looked up, from another machine the heartbeat is read.
"""

import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from dflash.store.alive import is_gone, this_process
from dflash.store.canonical import canonical, read_json

HEARTBEAT_SECONDS = 5.0
# A holder on another machine that has not touched its lock for so long is taken for dead.
SILENT_SECONDS = 120.0
POLL_SECONDS = 0.2


class HeldError(ValueError):
    """Somebody else holds the lock; `holder` says who."""

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        self.holder = holder
        super().__init__(f"{path} is held by process {holder['pid']} on {holder['host']} ({holder['about']})")


class Lease:
    """A held lock. It beats in a thread until `release`."""

    def __init__(self, path: Path, token: str) -> None:
        self._path = path
        self._token = token
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the lock back."""
        self._released.set()
        self._thread.join()
        holder = read_json(self._path)
        if holder and holder["token"] == self._token:
            self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            try:
                os.utime(self._path)
            except FileNotFoundError:
                return


def acquire(path: Path, about: str, wait_seconds: float = 0.0, run: str | None = None) -> Lease:
    """Take a lock.

    Args:
        path: the lock file; its folder must be writable.
        about: what the holder does, shown to those who wait.
        wait_seconds: longest wait for another holder.
        run: name of the run this belongs to; a holder of the same run is waited for as long as it lives.

    Raises:
        HeldError: another process holds it and the wait is over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex
    text = canonical({**this_process(), "token": token, "about": about, "run": run})
    deadline = time.monotonic() + wait_seconds
    told = False
    while not _create(path, text, token):
        holder = read_json(path)
        if holder is None:
            # It was released just now, or (only without hard links) its writer died before it wrote.
            if _silent_seconds(path) > SILENT_SECONDS:
                path.unlink(missing_ok=True)
            time.sleep(POLL_SECONDS / 20)
        elif _is_dead(path, holder):
            _clear(path, holder["token"])
        elif time.monotonic() >= deadline and not (run and holder["run"] == run):
            raise HeldError(path, holder)
        else:
            if not told:
                print(
                    f"waiting for process {holder['pid']} on {holder['host']} ({holder['about']})", flush=True
                )
                told = True
            time.sleep(POLL_SECONDS)
    return Lease(path, token)


def holder_of(path: Path) -> dict[str, Any] | None:
    """The living holder of a lock, or None."""
    holder = read_json(path)
    return None if holder is None or _is_dead(path, holder) else holder


def _create(path: Path, text: str, token: str) -> bool:
    """Make the lock file exclusively and with its content in one step: a hard link to a finished file."""
    temporary = path.with_name(f"{path.name}.{token}")
    temporary.write_text(text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        # No hard links on this file system.
        return _create_without_links(path, text)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _create_without_links(path: Path, text: str) -> bool:
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


def _is_dead(path: Path, holder: dict[str, Any]) -> bool:
    gone = is_gone(holder)
    return _silent_seconds(path) > SILENT_SECONDS if gone is None else gone


def _silent_seconds(path: Path) -> float:
    """Age of the last heartbeat by the file server's clock, which alone saw both times."""
    probe = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def _clear(path: Path, token: str) -> None:
    """Remove a dead holder's lock, never a new one that took its place: one clears at a time and looks again."""
    guard = path.with_name(f"{path.name}.clearing")
    try:
        guard.mkdir()
    except FileExistsError:
        if _silent_seconds(guard) > SILENT_SECONDS / 4:
            guard.rmdir()
        time.sleep(POLL_SECONDS)
        return
    holder = read_json(path)
    if holder and holder["token"] == token:
        path.unlink(missing_ok=True)
    guard.rmdir()
