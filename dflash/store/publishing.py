"""Putting a stored result where people look for it: `results/EXPERIMENT/STAGE.json` and the files beside it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.store.canonical import digest_of, read_json, write_json
from dflash.store.content import copy_file, is_unchanged, sha256_of, stat_of
from dflash.store.entry import MEASURED, Entry, files_under
from dflash.store.request import published_path

# Larger files stay in the store alone, unless the stage publishes all.
SMALL_BYTES = 32 << 20


def publish(
    entry: Entry,
    record: Mapping[str, Any],
    request_file: Path,
    request: Mapping[str, Any],
    manifest_file: Path,
    inputs: Mapping[Path, str],
    publish_all: bool,
) -> None:
    """Copy a finished result to its published place, and write its manifest last.

    Files that already hold the right content are left alone; files of the earlier result that no longer belong to it
    are removed; files that others put there stay.

    Args:
        entry: the finished result.
        record: its finished mark.
        request_file: where the request lies that it was made for.
        request: that request, as it was when the work began.
        manifest_file: where the manifest goes; the files go to the folder of the same name.
        inputs: content digest of every upstream manifest, by its path.
        publish_all: whether files of any size are copied.
    """
    manifest = record["manifest"]
    folder = manifest_file.with_suffix("")
    before = read_json(published_path(request_file)) or {"files": {}, "measured": []}
    chosen = {
        name: each["sha256"]
        for name, each in manifest["files"].items()
        if publish_all or each["bytes"] <= SMALL_BYTES
    }
    measured = [name for name in files_under(entry.result) if name.startswith(MEASURED + "/")]
    for name in {*before["files"], *before["measured"]} - {*chosen, *measured}:
        (folder / name).unlink(missing_ok=True)
    files = {}
    for name, sha256 in chosen.items():
        stat, known = before["files"].get(name, (None, None))
        if known != sha256 or not is_unchanged(folder / name, stat, sha256):
            copy_file(entry.result / name, folder / name)
        files[name] = (stat_of(folder / name), sha256)
    for name in measured:
        copy_file(entry.result / name, folder / name)
    write_json(manifest_file, manifest)
    _not_older_than(manifest_file, [request_file, *inputs])
    write_json(
        published_path(request_file),
        {
            "stage": entry.stage,
            "key": entry.key,
            "request": digest_of(request),
            "inputs": {str(path): content for path, content in inputs.items()},
            "manifest": sha256_of(manifest_file),
            "manifest_stat": stat_of(manifest_file),
            "files": files,
            "measured": measured,
        },
    )


def _not_older_than(path: Path, others: list[Path]) -> None:
    """Machines' clocks differ; a result that looks older than its inputs would be refused by Snakemake."""
    newest = max(other.stat().st_mtime_ns for other in others)
    if path.stat().st_mtime_ns < newest:
        os.utime(path, ns=(newest, newest))
