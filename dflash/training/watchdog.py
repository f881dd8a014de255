"""A thread a rank that sees what the main thread cannot: it may sit in a receive that never ends.

It tells the other ranks, through the store of the launcher, that this one lives and why it failed, and ends this process
(with the stacks on the terminal) when another failed, fell silent, or this one makes no progress. Ages are measured by
this process's monotonic clock from the moment a change was seen, so clocks are never compared.
"""

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from types import TracebackType
from typing import Self

from torch._C._distributed_c10d import Store

from dflash.training.meters import Meter
from dflash.training.stopping import Stopping
from dflash.transfer.roles import Topology

BEAT_SECONDS = 1.0
# A rank that was not heard for so long is taken for dead; well under the 30 s in which everything has to end.
SILENT_SECONDS = 15.0
# Time for drafters to agree, save and end after a signal; the launcher kills after 30 s.
SAVING_SECONDS = 25.0
FAILED, STOPPED = "dflash/failed", "dflash/stopped"
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel kill this process when the thread that started it ends (Linux).

    Args:
        parent: process that started this one, where it may be gone already: then this one ends at once.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class Watchdog:
    """Watches this rank and the others from a thread of its own."""

    def __init__(
        self,
        store: Store,
        rank: int,
        topology: Topology,
        meter: Meter,
        stopping: Stopping,
        timeout_seconds: float,
    ) -> None:
        """store: a connection of its own, which no other thread uses."""
        self._store = store
        self._rank = rank
        self._topology = topology
        self._meter = meter
        self._stopping = stopping
        self._timeout = timeout_seconds
        self._over = threading.Event()
        self._heard = {peer: ("", time.monotonic()) for peer in range(topology.num_ranks) if peer != rank}
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        store.set_timeout(timedelta(seconds=SILENT_SECONDS))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """This rank is done, or failed: tell the others. Only the first reason counts."""
        self._over.set()
        self._thread.join()
        if error is None:
            self._store.set(f"dflash/beat/{self._rank}", "done")
        else:
            self._tell(f"{type(error).__name__}: {error}")

    def stopped(self, status: int) -> None:
        """The drafters have saved and stop early: end the targets with the same exit status."""
        self._store.set(STOPPED, str(status))

    def stop_status(self) -> int | None:
        """The status that `stopped` gave, None if the drafters did not stop."""
        return int(self._store.get(STOPPED)) if self._store.check([STOPPED]) else None

    def _tell(self, reason: str) -> None:
        try:
            self._store.compare_set(
                FAILED, "", f"{self._topology.name(self._rank)} on {socket.gethostname()}: {reason}"
            )
        except RuntimeError:
            print(f"{self._topology.name(self._rank)}: the launcher is gone too", file=sys.stderr, flush=True)

    def _watch(self) -> None:
        beat, changes, since = 0, -1, time.monotonic()
        signaled_at: float | None = None
        while not self._over.wait(BEAT_SECONDS):
            beat += 1
            now = time.monotonic()
            if self._meter.num_changes != changes:
                changes, since = self._meter.num_changes, now
            if self._stopping.signaled.is_set() and signaled_at is None:
                signaled_at = now
            try:
                self._exchange(beat, now)
            except RuntimeError as error:
                self._end(f"the launcher's store is gone ({type(error).__name__})", tell=False)
            if changes > 0 and now - since > self._timeout:
                self._end(
                    f"no progress for {now - since:.0f} s; waiting for {self._meter.activity}", tell=True
                )
            if signaled_at is not None and now - signaled_at > SAVING_SECONDS:
                self._end(
                    "the ranks did not agree to stop in time; nothing was saved since the last checkpoint",
                    tell=True,
                )

    def _exchange(self, beat: int, now: float) -> None:
        """Send this rank's beat, hear the others', and end where one failed or fell silent."""
        self._store.set(f"dflash/beat/{self._rank}", str(beat))
        if self._store.check([FAILED]):
            self._end(self._store.get(FAILED).decode(), tell=False)
        if self._topology.role(self._rank) == "target" and self._store.check([STOPPED]):
            # The drafters have saved and stopped; a target holds nothing that would be lost.
            os._exit(int(self._store.get(STOPPED)))
        for peer, (last, at) in self._heard.items():
            key = f"dflash/beat/{peer}"
            text = self._store.get(key).decode() if self._store.check([key]) else ""
            if text != last or text == "done":
                self._heard[peer] = (text, now)
            elif last and now - at > SILENT_SECONDS:
                self._end(
                    f"{self._topology.name(peer)} was not heard for {now - at:.0f} s: its process or machine is gone or stopped",
                    tell=True,
                )

    def _end(self, reason: str, tell: bool) -> None:
        """Say why, show the stacks, and end the process from this thread, whatever the main thread waits for."""
        if self._over.is_set():
            return
        if tell:
            self._tell(reason)
        print(
            f"error: {self._topology.name(self._rank)} ends: {reason} (was at: {self._meter.activity})",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        os._exit(1)
