"""One run at a time in a folder, and what a failed run says last."""

import sys
from collections.abc import Iterator
from pathlib import Path

from dflash.store.lease import HeldError, Lease, acquire
from dflash.store.request import RUN_LOCK


def hold_run() -> Lease:
    """Take the folder for this run, or end the process with a message that names the run that has it."""
    try:
        return acquire(RUN_LOCK, "a snakemake run")
    except HeldError as error:
        where = f"process {error.holder['pid']} on {error.holder['host']}"
        print(
            f"another run works in this folder: {where}; wait for it or end it", file=sys.stderr, flush=True
        )
        sys.exit(1)


def failures(logs: Path, results: Path, since: float) -> Iterator[str]:
    """One line for every stage that failed in this run: its last words and where its log is.

    Args:
        logs: folder of the logs, laid out like the results.
        results: folder of the manifests; a stage that failed has none.
        since: start of the run, seconds since the epoch.
    """
    for log in sorted(logs.rglob("*.log")):
        manifest = results / log.relative_to(logs).with_suffix(".json")
        if log.stat().st_mtime >= since and not manifest.exists():
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            yield f"{lines[-1] if lines else 'no output'}\n  full log: {log}"
