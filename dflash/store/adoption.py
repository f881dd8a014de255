"""Letting a training whose key differs in code alone go on, or stay."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.store.canonical import digest_of, read_json, write_json
from dflash.store.code import CodeIndex
from dflash.store.content import copy_file
from dflash.store.entry import Entry, files_under
from dflash.store.lease import acquire, holder_of
from dflash.store.request import RUN_LOCK, STORE, components, manifest_path, request_path

STAGE = "fit"
CODE = "code."


def adopt(experiment: str, project: Path, package: str) -> str:
    """Give an earlier training of an experiment the key that the present code makes.

    Args:
        experiment: whose training.
        project: folder that holds the first-party packages.
        package: package of the scripts.

    Returns:
        What was adopted, in a line.

    Raises:
        ValueError: there is no such training, it is being worked on, or more than code differs.
        HeldError: a run works in this folder.
    """
    lease = acquire(RUN_LOCK, "dflash adopt")
    try:
        return _adopt(experiment, project, package)
    finally:
        lease.release()


def _adopt(experiment: str, project: Path, package: str) -> str:
    request = read_json(request_path(STAGE, experiment))
    if request is None:
        raise ValueError(
            f"{experiment} has no request of {STAGE}; run `snakemake -n` once so that it is written"
        )
    code = CodeIndex(project, {}).closure(f"{package}.{STAGE}")
    own = {**components(request, {}), **{f"{CODE}{module}": digest for module, digest in code.items()}}
    own = {
        name: value
        for name, value in own.items()
        if not name.startswith(CODE) or name.removeprefix(CODE) in code
    }
    del own["order"]
    found = [
        folder
        for folder in (STORE / STAGE).glob("*")
        if _differs_in_code_alone(folder, own, experiment, request)
    ]
    if not found:
        raise ValueError(
            f"the store has no training of {experiment} that differs from the present one in code alone"
        )
    finished = [folder for folder in found if (folder / "entry.json").exists()]
    newest = max(finished or found, key=lambda folder: (folder / "components.json").stat().st_mtime_ns)
    if holder := holder_of(newest / "lock"):
        raise ValueError(
            f"process {holder['pid']} on {holder['host']} works on {newest}; wait for it or end it"
        )
    old = read_json(newest / "components.json")
    new = {name: value for name, value in old.items() if not name.startswith(CODE)}
    new |= {name: value for name, value in own.items() if name.startswith(CODE)}
    entry = Entry(STORE, STAGE, digest_of(new))
    if entry.record() is not None:
        raise ValueError(
            f"{experiment}'s training is already finished with the present code; nothing to adopt"
        )
    adopted = {"from": newest.name, "code_before": _code(old), "code_after": _code(new)}
    _take_over(newest, entry, new, adopted)
    return f"{newest} goes on as {entry.folder} ({'finished' if finished else 'unfinished'}); both code digests are recorded"


def _take_over(old: Path, entry: Entry, made_of: Mapping[str, Any], adopted: Mapping[str, Any]) -> None:
    entry.begin(made_of)
    write_json(entry.folder / "adopted.json", adopted)
    record = read_json(old / "entry.json")
    if record is None:
        shutil.rmtree(entry.state)
        os.replace(old / "state", entry.state)
        if (old / "spent.json").exists():
            os.replace(old / "spent.json", entry.folder / "spent.json")
        return
    for name in files_under(old / "result"):
        copy_file(old / "result" / name, entry.work / name)
    entry.finish({name: value for name, value in record.items() if name != "manifest"})


def _differs_in_code_alone(
    folder: Path, own: Mapping[str, Any], experiment: str, request: Mapping[str, Any]
) -> bool:
    """Whether a stored training has the wanted settings and inputs, and other code."""
    made_of = read_json(folder / "components.json")
    if made_of is None or not ((folder / "entry.json").exists() or any((folder / "state").glob("*"))):
        return False
    rest = {name: value for name, value in made_of.items() if not name.startswith((CODE, "input.", "order"))}
    wanted = {name: value for name, value in own.items() if not name.startswith(CODE)}
    inputs = {
        name.removeprefix("input."): value for name, value in made_of.items() if name.startswith("input.")
    }
    same_inputs = all(_content_now(name, experiment, request) == content for name, content in inputs.items())
    return rest == wanted and same_inputs and _code(made_of) != _code(own)


def _content_now(name: str, experiment: str, request: Mapping[str, Any]) -> str | None:
    """Content digest of an upstream result as it is published now."""
    if name == "start_from":
        path = manifest_path(STAGE, request["settings"]["training"]["start_from"])
    else:
        stage, _, source = name.partition("/")
        path = manifest_path(stage, experiment, source or None)
    manifest = read_json(path)
    return manifest["content"] if manifest else None


def _code(made_of: Mapping[str, Any]) -> str:
    return digest_of({name: value for name, value in made_of.items() if name.startswith(CODE)})
