"""What a run will make again, and how long that took the last time."""

from collections.abc import Iterable
from pathlib import Path

from dflash.store.canonical import read_json
from dflash.store.reason import changes, in_words, why_path
from dflash.store.request import components

SHOWN = 12


def forecast(requests: Iterable[Path]) -> str:
    """One line a stage that is due, with what changed of its own, and the time of all at most.

    What a stage's inputs turn out to be is not known yet: a stage whose inputs come out as they were is taken from the
    store, so the time is a bound for the stages that have run before.

    Args:
        requests: the request files of the stages that Snakemake will run.
    """
    lines = []
    seconds, num_new = 0.0, 0
    for path in requests:
        request = read_json(path)
        title = " ".join(filter(None, (request["experiment"], request["stage"], request["source"])))
        last = read_json(why_path(path))
        if last is None:
            num_new += 1
            lines.append(f"  {title}: for the first time")
            continue
        seconds += last["seconds"]
        before = {
            name: value
            for name, value in last["components"].items()
            if not name.startswith(("input.", "order"))
        }
        own = components(request, {})
        del own["order"]
        named = (
            "; ".join(in_words(each) for each in changes(before, own)[:3]) or "if what is above it changes"
        )
        lines.append(f"  {title}: {named} (took {in_time(last['seconds'])})")
    hidden = [f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    new = f", and {num_new} never made before" if num_new else ""
    return "\n".join(
        [
            f"due: {len(lines)} stages, at most {in_time(seconds)} by their last times{new}",
            *lines[:SHOWN],
            *hidden,
        ]
    )


def in_time(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
