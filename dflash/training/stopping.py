"""When a run has to end early: a signal, or the job's time limit.

The handler of a signal only sets a flag. Drafters put it into the sum at the end of a step, so all of them stop after
the same step.
"""

import signal
import threading
import time
from types import FrameType

WALL_TIME_STATUS = 75
SIGNAL_STATUS = 143
# Before the limit, time to save: this share of the limit, within these bounds.
_SAVING_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.05, 5.0, 300.0


class Stopping:
    """Watches signals and the clock of this process (monotonic: changes of the date do nothing)."""

    def __init__(self, wall_time_seconds: float | None, already_passed_seconds: float = 0.0) -> None:
        """already_passed_seconds: how long the job ran before this was made."""
        self._began = time.monotonic() - already_passed_seconds
        self._limit = None
        if wall_time_seconds is not None:
            saving = min(max(_SAVING_SHARE * wall_time_seconds, _LEAST_SECONDS), _MOST_SECONDS)
            self._limit = max(wall_time_seconds - saving, 0.0)
        self.signaled = threading.Event()

    def listen(self) -> None:
        """Take over SIGTERM and SIGINT; the main thread must call this."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heard)

    def requested(self) -> bool:
        """Whether to stop at the end of the step."""
        return self.signaled.is_set() or self.out_of_time()

    def out_of_time(self) -> bool:
        """Whether the time limit is near."""
        return self._limit is not None and time.monotonic() - self._began >= self._limit

    def status(self) -> int:
        """The exit status of a run that stopped: 75 asks to be run again."""
        return WALL_TIME_STATUS if self.out_of_time() else SIGNAL_STATUS

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self.signaled.set()
