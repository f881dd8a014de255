"""What a name in the config stands for: the files of a source, the files of a target, the commit of a hub name."""

import glob
from pathlib import Path

from dflash.store.canonical import read_json, write_json

DATA_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".parquet", ".arrow", ".txt")
HUB = "hub:"
BUILTIN = "builtin:"


def source_files(name: str, location: str) -> dict[str, Path]:
    """The files of a source by the name under which they enter keys, sorted.

    Args:
        name: the source's name, for messages.
        location: a file, a folder (all data files under it) or a glob; relative to the working directory.

    Raises:
        ValueError: there is no such file.
    """
    if location.startswith(HUB):
        raise ValueError(
            f"data.sources: {name} has the location {location!r}; data sets of the hub are not read yet: download it "
            "(`hf download --repo-type dataset`) and give its folder"
        )
    if location.startswith(BUILTIN):
        return {}
    path = Path(location).expanduser()
    if path.is_dir():
        found = [
            each for each in sorted(path.rglob("*")) if each.is_file() and _is_data(each.relative_to(path))
        ]
        base = path
    elif path.is_file():
        found, base = [path], path.parent
    else:
        found = [Path(each) for each in sorted(glob.glob(str(path), recursive=True)) if Path(each).is_file()]
        base = _fixed_part(path)
    if not found:
        kinds = ", ".join(DATA_SUFFIXES)
        what = f"a folder without data files ({kinds})" if path.is_dir() else "where no file is"
        raise ValueError(
            f"data.sources: {name} has the location {location!r}, {what} (seen from {Path.cwd()})"
        )
    return {each.relative_to(base).as_posix(): each for each in found}


def folder_files(key: str, folder: Path) -> dict[str, Path]:
    """Every file of a model's folder (hidden ones aside) or the one file, by name.

    Raises:
        ValueError: nothing is there.
    """
    if folder.is_file():
        return {folder.name: folder}
    files = [
        each
        for each in sorted(folder.rglob("*"))
        if each.is_file() and not _is_hidden(each.relative_to(folder))
    ]
    if not files:
        raise ValueError(
            f"{key}: there is no file or folder with files at {str(folder)!r} (seen from {Path.cwd()})"
        )
    return {each.relative_to(folder).as_posix(): each for each in files if each.suffix not in (".py", ".pyc")}


def target_identity(target: str, revision: str | None, demo: Path, store: Path) -> dict[str, str | Path]:
    """What a target is: its files, or its commit on the hub.

    Args:
        target: the config's `target`.
        revision: the config's `target_loading.revision`.
        demo: folder of the built-in target.
        store: where resolved commits are recorded.
    """
    if target.startswith(HUB):
        return {"commit": hub_commit(target.removeprefix(HUB), revision, store)}
    return dict(folder_files("target", demo if target == "demo" else Path(target).expanduser()))


def hub_commit(name: str, revision: str | None, store: Path) -> str:
    """The commit of a model on the hub; resolved once, then read from the store's record.

    Raises:
        ValueError: the hub cannot be reached or knows no such name.
    """
    record = store / "commits.json"
    known = read_json(record) or {}
    wanted = f"model {name} {revision or 'newest'}"
    if wanted not in known:
        known[wanted] = _resolve(name, revision)
        write_json(record, known)
        print(f"{wanted} is commit {known[wanted]}; recorded in {record}", flush=True)
    return str(known[wanted])


def _resolve(name: str, revision: str | None) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi()
    try:
        info = api.model_info(name, revision=revision)
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"hub:{name}: the commit of this model cannot be resolved ({reason}); pin one or use a folder"
        ) from None
    return str(info.sha)


def _is_data(path: Path) -> bool:
    return not _is_hidden(path) and path.name.endswith(DATA_SUFFIXES)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "__pycache__")) for part in path.parts)


def _fixed_part(pattern: Path) -> Path:
    """The folders before the first wildcard of a glob."""
    parts = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return Path(*parts)
