"""Why a stage ran: which component of its key changed since its result was last published, from what to what."""

import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from dflash.store.canonical import read_json, write_json
from dflash.store.request import RESULTS

VERSIONED = ("torch", "transformers", "tokenizers", "polars", "numpy", "snakemake", "triton")
SHOWN = 3
MAX_TEXT = 60


def why_path(request: Path) -> Path:
    """Where the reason of a stage's last run lies: `results/EXPERIMENT/.why/STAGE.json` for its `.request` file."""
    parts = [".why" if part == ".request" else part for part in request.parts]
    return Path(*parts)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The components that differ, each with its value before and after (None: absent)."""
    names = [*after, *(name for name in before if name not in after)]
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return [{"component": name, "before": old, "after": new} for name, old, new in pairs if old != new]


def announcement(request: Path, components: Mapping[str, Any]) -> str:
    """One line on what a stage is about to make again and how long that took last time."""
    last = read_json(why_path(request))
    if last is None:
        return "to be made for the first time"
    differing = changes(last["components"], components)
    named = (
        ", ".join(in_words(each) for each in differing[:SHOWN])
        or "its stored result is gone, damaged or unwanted"
    )
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return f"to be made again: {named}{more}; the last time took {last['seconds']:.1f} s"


def in_words(change: Mapping[str, Any]) -> str:
    """A changed component as `name: before -> after`; digests shortened."""
    return f"{change['component']}: {_short(change['before'])} -> {_short(change['after'])}"


def record_reason(
    request: Path, components: Mapping[str, Any], key: str, record: Mapping[str, Any], worked: bool
) -> None:
    """Write why a stage ran."""
    path = why_path(request)
    last = read_json(path) or {"key": None, "components": {}}
    write_json(
        path,
        {
            "key": key,
            "previous_key": last["key"],
            "outcome": "made" if worked else "unchanged, from the store",
            "changed": changes(last["components"], components),
            "seconds": record["seconds"],
            "versions": record["versions"],
            "components": dict(components),
        },
    )


def explanations(stage: str, experiment: str | None) -> list[str]:
    """Why a stage ran last, in lines, for one experiment or all.

    Raises:
        ValueError: it has not run.
    """
    pattern = f"{experiment or '*'}/.why/{stage}"
    found = [
        *RESULTS.glob(f"{pattern}.json"),
        *RESULTS.glob(f"{pattern}/*.json"),
        *RESULTS.glob(f".why/{stage}.json"),
    ]
    if not found:
        known = sorted(
            {
                path.stem if path.parent.name == ".why" else path.parent.name
                for path in RESULTS.rglob(".why/**/*.json")
            }
        )
        whose = f" of {experiment}" if experiment else ""
        raise ValueError(f"{stage}{whose} has not run here; what has: {', '.join(known) or 'nothing'}")
    lines = []
    for path in sorted(found):
        last = read_json(path)
        title = " ".join(part for part in path.with_suffix("").relative_to(RESULTS).parts if part != ".why")
        lines.append(f"{title}: {last['outcome']} ({last['seconds']:.1f} s of work)")
        if last["previous_key"] is None:
            lines.append("  it was made for the first time")
        else:
            lines += [f"  {in_words(each)}" for each in last["changed"]] or ["  nothing in its key changed"]
        lines += [
            f"  made with {', '.join(f'{name} {version}' for name, version in last['versions'].items())}"
        ]
    return lines


def versions() -> dict[str, str]:
    """Versions of the packages that results may depend on; recorded, in no key."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _short(value: Any) -> str:
    if value is None:
        return "absent"
    text = value[:12] if isinstance(value, str) and len(value) == 64 else repr(value)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
