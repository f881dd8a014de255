"""What a stage is asked for, as a small file per stage that the main process keeps up to date.

Snakemake compares only the times of files. A request is an input of its rule and is written exactly when what it asks
for changed, or when what was published no longer is what was asked for; so comparing times is enough.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash.store.canonical import canonical, digest_of, read_json, write_json
from dflash.store.code import CodeIndex
from dflash.store.content import ContentIndex, is_unchanged, stat_of
from dflash.store.entry import FORMAT, Entry
from dflash.store.lease import holder_of
from dflash.store.machine import machine

RESULTS = Path("results")
STORE = Path(".store")
RUN_LOCK = STORE / "run.lock"


@dataclass(frozen=True)
class Wanted:
    """One stage of one experiment, as the config wants it."""

    stage: str
    settings: Mapping[str, Any]
    """All settings of the experiment, as plain values; the request keeps what the script may see."""
    experiment: str | None = None
    source: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    """Source files by the name under which they enter the key."""
    identities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a setting stands for beyond its text (the files of a target, the commit of a hub name), by dotted path."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Plain values for the script that enter no key."""


def request_path(stage: str, experiment: str | None, source: str | None = None) -> Path:
    """Where a stage's request lies."""
    folder = RESULTS / experiment / ".request" if experiment else RESULTS / ".request"
    return folder / stage / f"{source}.json" if source else folder / f"{stage}.json"


def manifest_path(stage: str, experiment: str | None, source: str | None = None) -> Path:
    """Where a stage's manifest lies; its files are published in the folder of the same name."""
    folder = RESULTS / experiment if experiment else RESULTS
    return folder / stage / f"{source}.json" if source else folder / f"{stage}.json"


def runtime_path(experiment: str | None) -> Path:
    """Where an experiment's execution settings lie; they are no input of any rule."""
    return request_path("runtime", experiment)


def published_path(request: Path) -> Path:
    """The record of what was published for a request, beside it."""
    return request.with_suffix(".published")


def bring_up_to_date(
    wanted: Iterable[Wanted], project: Path, package: str, identity: str = "content"
) -> list[str]:
    """Write the requests whose content changed or whose published result is not what it says.

    Args:
        wanted: every stage of every experiment.
        project: folder that holds the first-party packages.
        package: package of the scripts.
        identity: `content`, or `stat` for source files too large to hash.

    Returns:
        One warning a line about results that were edited or damaged and will be restored.

    Raises:
        ValueError: a script is missing, or asks for a setting that does not exist or may enter no key.
    """
    code_file = STORE / "code.json"
    known = read_json(code_file) or {}
    before = canonical(known)
    code = CodeIndex(project, known)
    contents = ContentIndex(STORE / "content.json")
    checked: dict[Path, list[str]] = {}
    busy = holder_of(RUN_LOCK) is not None
    warnings = []
    for each in wanted:
        request = _request(each, code, contents, package, identity)
        path = request_path(each.stage, each.experiment, each.source)
        if not (busy and path.exists()):
            warnings += _write(
                path, request, manifest_path(each.stage, each.experiment, each.source), checked
            )
    contents.save()
    if canonical(known) != before:
        write_json(code_file, known)
    return warnings


def components(request: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """What a key is made of, flat, so that `why` can name the piece that changed.

    Args:
        request: the parsed request file.
        inputs: content digest of every upstream result, by name, in the order in which the stage sees them.
    """
    parts: dict[str, Any] = {"format": FORMAT, "stage": request["stage"], "source": request["source"]}
    for name, value in request["settings"].items():
        parts.update(_leaves(f"settings.{name}", value))
    parts.update((f"code.{name}", value) for name, value in request["code"].items())
    parts.update((f"files.{name}", value) for name, value in request["files"].items())
    for name, identity in request["identities"].items():
        parts.update((f"{name}.{part}", value) for part, value in identity.items())
    parts.update((f"input.{name}", content) for name, content in inputs.items())
    parts["order"] = [*inputs]
    return parts


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The settings of a section one by one, by dotted path."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(f"{name}.{key}", below)
    else:
        yield name, value


def _request(
    wanted: Wanted, code: CodeIndex, contents: ContentIndex, package: str, identity: str
) -> dict[str, Any]:
    script = f"{package}.{wanted.stage}"
    closure = code.closure(script)
    allowed = code.settings(script)
    names = sorted(wanted.files)
    return {
        "stage": wanted.stage,
        "experiment": wanted.experiment,
        "source": wanted.source,
        "settings": {name: setting_of(wanted, name, script) for name in allowed},
        "code": closure,
        "files": {name: _identity_of(wanted.files[name], contents, identity) for name in names},
        "identities": {
            name: {part: _identity_of(value, contents, "content") if isinstance(value, Path) else value
                   for part, value in parts.items()}
            for name, parts in sorted(wanted.identities.items()) if _may_see(allowed, name)
        },
        "paths": [str(wanted.files[name]) for name in names],
        "facts": dict(wanted.facts),
    }  # fmt: skip


def setting_of(wanted: Wanted, name: str, script: str) -> Any:
    """The value of a dotted setting, as the stage sees it.

    Raises:
        ValueError: there is no such setting, or it may enter no key.
    """
    if name.split(".")[0] == "runtime":
        raise ValueError(
            f"{script}: SETTINGS names {name!r}; execution settings enter no key, use stage.runtime"
        )
    if name == "experiment":
        return wanted.experiment
    if name == "machine":
        return machine()
    value: Any = wanted.settings
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"{script}: SETTINGS names {name!r}, which is no setting")
        value = value[part]
    if name == "data" and wanted.source:
        return {**value, "sources": _own_source(value["sources"], wanted.source)}
    return _own_source(value, wanted.source) if name == "data.sources" and wanted.source else value


def _own_source(sources: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """What a per-source stage sees of the sources: its own, without the place, which is no part of what is in the files."""
    return [{**each, "location": each["name"]} for each in sources if each["name"] == name]


def _may_see(allowed: Iterable[str], name: str) -> bool:
    return any(name == each or name.startswith(each + ".") or each.startswith(name + ".") for each in allowed)


def _identity_of(path: Path, contents: ContentIndex, identity: str) -> str:
    if identity == "stat":
        _, size, mtime_ns, _ = stat_of(path)
        return f"stat:{size}:{mtime_ns}"
    return contents.sha256(path)


def _write(path: Path, request: dict[str, Any], manifest: Path, checked: dict[Path, list[str]]) -> list[str]:
    """Write one request if need be; returns warnings."""
    existing = read_json(path) or {}
    restore = existing.pop("restore", None)
    asked_before = canonical(existing) == canonical(request)
    trouble, warning = _trouble(path, digest_of(request), manifest, checked)
    if trouble and published_path(path).exists():
        # The same trouble after it was mended once is a new one.
        trouble = f"{trouble}, published {stat_of(published_path(path))}"
    if asked_before and (trouble is None or trouble == restore):
        return []
    write_json(path, {**request, "restore": trouble} if trouble else request)
    if manifest.exists() and manifest.stat().st_mtime_ns >= path.stat().st_mtime_ns:
        # Times from another clock must not hide that the result is older than what is asked for.
        earlier = path.stat().st_mtime_ns - 1_000_000_000
        os.utime(manifest, ns=(earlier, earlier))
    return [warning] if warning else []


def _trouble(
    request: Path, digest: str, manifest: Path, checked: dict[Path, list[str]]
) -> tuple[str | None, str | None]:
    """What is wrong with a published result, in words that differ between troubles; and a warning."""
    if not manifest.exists():
        return None, None
    record = read_json(published_path(request))
    if record is None:
        return f"{manifest}: no record of its publishing, {stat_of(manifest)}", None
    if not is_unchanged(manifest, record["manifest_stat"], record["manifest"]):
        return (
            f"{manifest} edited, {stat_of(manifest)}",
            f"{manifest} was edited by hand; it will be restored",
        )
    for name, (stat, sha256) in record["files"].items():
        path = manifest.with_suffix("") / name
        if not is_unchanged(path, stat, sha256):
            now = stat_of(path) if path.is_file() else "missing"
            return f"{path} edited, {now}", f"{path} was edited or removed by hand; it will be restored"
    entry = Entry(STORE, record["stage"], record["key"])
    if entry.folder not in checked:
        checked[entry.folder] = entry.damaged_files() if entry.record() else ["entry.json"]
    if entry.fresh_mark.exists():
        return f"asked for afresh, {stat_of(entry.fresh_mark)}", None
    if bad := checked[entry.folder]:
        return (
            f"{entry.folder}: {bad[0]} damaged",
            f"{entry.folder / bad[0]} is damaged or missing; it will be made again",
        )
    if record["request"] != digest:
        return f"made for another request, {record['request']}", None
    for upstream, content in record["inputs"].items():
        now = read_json(Path(upstream))
        if now is not None and now["content"] != content:
            return f"{upstream} changed, {now['content']}", None
    return None, None
