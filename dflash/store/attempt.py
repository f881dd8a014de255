"""One attempt at a piece of work: the lock on its folder, its meter, and an eye on the run it belongs to."""

import os
import signal
import threading
import time
from types import TracebackType
from typing import Any, Self

from dflash.store.alive import is_gone
from dflash.store.entry import Entry
from dflash.store.lease import Lease, acquire, holder_of
from dflash.store.request import RUN_LOCK

WATCH_SECONDS = 1.0
# An orphaned trainer saves within this time; the next command waits a little longer for it.
SAVING_SECONDS = 50.0
WAIT_SECONDS = 60.0


def run_in_progress() -> dict[str, Any] | None:
    """The Snakemake process that runs in this folder, or None when a script is run by hand."""
    return holder_of(RUN_LOCK)


class Attempt:
    """Holds a folder's lock while working in it.

    When the run's Snakemake is gone (killed, whatever killed it), the process gets SIGTERM, so that a trainer saves and
    everything else simply ends; whoever ignores it for `SAVING_SECONDS` is ended.

    Raises:
        HeldError: a process of another run holds the folder for longer than `WAIT_SECONDS`.
    """

    def __init__(self, entry: Entry, title: str) -> None:
        self._entry = entry
        self._title = title
        self._run = run_in_progress()
        self._over = threading.Event()
        self._lease: Lease | None = None

    def __enter__(self) -> Self:
        token = self._run["token"] if self._run else None
        self._lease = acquire(self._entry.lock, self._title, WAIT_SECONDS, run=token)
        self._before = self._entry.spent_seconds()
        self._started = time.monotonic()
        self._watcher = threading.Thread(target=self._watch, name="attempt", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._watcher.join()
        if self._lease:
            self._lease.release()

    def seconds(self) -> float:
        """Seconds of work on this key, over all attempts."""
        return round(self._before + time.monotonic() - self._started, 3)

    def _watch(self) -> None:
        while not self._over.wait(WATCH_SECONDS):
            self._entry.spend(self.seconds())
            if self._run and is_gone(self._run):
                os.kill(os.getpid(), signal.SIGTERM)
                if not self._over.wait(SAVING_SECONDS):
                    os._exit(1)
                return
