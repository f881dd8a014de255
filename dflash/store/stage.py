"""What a rule's script is: one piece of work in the store's keyed folder, done once for one key.

On a hit the stored result is published and the process ends before any heavy import; on a miss `work` fills
`stage.folder`, which becomes the stored result in one step.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash.store.attempt import Attempt, run_in_progress
from dflash.store.canonical import digest_of, read_json
from dflash.store.entry import Entry
from dflash.store.publishing import publish
from dflash.store.reason import announcement, record_reason, versions
from dflash.store.request import STORE, components, runtime_path

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


class Stage:
    """What a stage's work may see and where it writes.

    Attributes:
        settings: nested dict of what the script's SETTINGS names.
        inputs: folder of each upstream result in the store; a dict by source (or experiment) where there are several.
        folder: the result; starts empty.
        state: survives crashes of unfinished work; in no key.
        sources: source files of the request, in the order of their names. digests: what identifies their contents.
        pins: what settings stand for beyond their text, such as the commit of a hub name.
        facts: plain values of the request that enter no key.
        runtime: execution settings, in no key.
        key: the key of this result.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        manifests: Mapping[str, Mapping[str, Any]],
        groups: Sequence[str],
        runtime: Mapping[str, Any],
    ) -> None:
        self._request = request
        self._entries = {name: Entry(STORE, each["stage"], each["key"]) for name, each in manifests.items()}
        self._manifests = _by_group(manifests, groups)
        self.components = components(request, {name: each["content"] for name, each in manifests.items()})
        self.key = digest_of(self.components)
        self.entry = Entry(STORE, request["stage"], self.key)
        self.settings = _nested(request["settings"])
        self._pin_target()
        self.inputs: dict[str, Any] = _by_group(
            {name: each.result for name, each in self._entries.items()}, groups
        )
        self.folder = self.entry.work
        self.state = self.entry.state
        self.sources = [Path(path) for path in request["paths"]]
        self.digests = [str(digest) for digest in request["files"].values()]
        self.pins: Mapping[str, Any] = request["identities"]
        self.facts: Mapping[str, Any] = request["facts"]
        self.runtime = dict(runtime)
        self.launcher = run_in_progress()
        self.memos: list[str] = []

    @property
    def experiment(self) -> str:
        """Name of the experiment, for stages whose SETTINGS name `experiment`: only then it is in the key."""
        if "experiment" not in self._request["settings"]:
            raise ValueError(
                f"{self._request['stage']} uses the experiment's name; its SETTINGS must name 'experiment'"
            )
        return str(self._request["experiment"])

    @property
    def source(self) -> str:
        """Name of the source a per-source stage works on."""
        return str(self._request["source"])

    def manifest(self, name: str) -> Any:
        """The manifest of an upstream result, or a dict of them by source (or experiment)."""
        return self._manifests[name]

    def _pin_target(self) -> None:
        """Let every loader take the commit that stands in the key, not what a hub name has come to mean since."""
        commit = self._request["identities"].get("target", {}).get("commit")
        if commit is not None and "target_loading" in self.settings:
            self.settings["target_loading"]["revision"] = commit

    def check_inputs(self) -> None:
        """Raise ValueError if an upstream result in the store is not what its manifest says."""
        for name, entry in self._entries.items():
            record = entry.record()
            if record is None or entry.damaged_files():
                raise ValueError(
                    f"the stored result of {name} is damaged or gone ({entry.folder}); run the command again"
                )

    def memo(self, name: str, parts: Mapping[str, Any], work: Callable[[Path], None]) -> Path:
        """A part of the work with a key of its own, which outlives changes of the rest.

        Args:
            name: what kind of part it is.
            parts: what this part depends on beside the stage's settings, code and pins.
            work: fills an empty folder.

        Returns:
            Folder of the finished part in the store; read it, never write to it.
        """
        shared = {
            key: value
            for key, value in self.components.items()
            if not key.startswith(("files.", "input.", "order"))
        }
        made_of = {**shared, "memo": name, "parts": dict(parts)}
        entry = Entry(STORE, f"{self._request['stage']}.{name}", digest_of(made_of))
        self.memos.append(f"{entry.stage}/{entry.folder.name}")
        if is_finished(entry) and not self.entry.fresh_mark.exists():
            return entry.result
        with Attempt(entry, f"{self._request['stage']} {name}") as attempt:
            if self.entry.fresh_mark.exists() or not is_finished(entry):
                entry.begin(made_of)
                work(entry.work)
                entry.finish({"seconds": attempt.seconds(), "memos": []})
        return entry.result


def is_finished(entry: Entry) -> bool:
    """Whether the store holds a result; a damaged one is dropped, loudly."""
    if entry.record() is None or entry.fresh_mark.exists():
        return False
    if bad := entry.damaged_files():
        _say(f"warning: {entry.result / bad[0]} is damaged or missing; it is made again")
        entry.drop()
        return False
    return True


def run_stage(work: Callable[[Stage], None], publish_all: bool = False) -> None:
    """Run a script as a stage; ends the process with 0, 1 (one message), or what `work` exits with.

    Args:
        work: fills `stage.folder`; called on a miss only.
        publish_all: publish files of any size, not just small ones.
    """
    try:
        _run(_arguments(), work, publish_all)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        sys.exit(130)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One stage of the pipeline; Snakemake calls it.")
    parser.add_argument("--request", type=Path, required=True)
    # After the name: one manifest, or none where the config needs none.
    parser.add_argument("--input", nargs="+", action="append", default=[], metavar="NAME MANIFEST")
    # After the name: any number of manifests, seen as a dict.
    parser.add_argument("--inputs", nargs="+", action="append", default=[], metavar="NAME MANIFEST")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def _run(arguments: argparse.Namespace, work: Callable[[Stage], None], publish_all: bool) -> None:
    request = read_json(arguments.request)
    if request is None:
        raise ValueError(f"{arguments.request} is missing or no request; run the command again")
    request.pop("restore", None)
    paths: dict[str, Path] = {name: Path(path) for name, *one in arguments.input for path in one}
    for name, *several in arguments.inputs:
        paths.update((f"{name}/{_member(name, Path(path))}", Path(path)) for path in several)
    manifests = {name: _manifest(path) for name, path in paths.items()}
    groups = [name for name, *_ in arguments.inputs]
    stage = Stage(request, manifests, groups, read_json(runtime_path(request["experiment"])) or {})
    title = _title(request)
    worked = not is_finished(stage.entry) and _make(
        stage, work, title, announcement(arguments.request, stage.components)
    )
    record = stage.entry.record()
    if record is None:
        raise ValueError(f"{stage.entry.folder} was removed by another process; run the command again")
    inputs = {path: manifests[name]["content"] for name, path in paths.items()}
    publish(stage.entry, record, arguments.request, request, arguments.output, inputs, publish_all)
    record_reason(arguments.request, stage.components, stage.key, record, worked)
    _say(f"{title}: " + (f"made in {record['seconds']:.1f} s" if worked else "unchanged, from the store"))


def _make(stage: Stage, work: Callable[[Stage], None], title: str, reason: str) -> bool:
    """Do the work under the folder's lock, unless somebody else did while we waited for it."""
    with Attempt(stage.entry, title) as attempt:
        if is_finished(stage.entry):
            return False
        _say(f"{title}: {reason}")
        stage.check_inputs()
        # Snakemake sets them to 1 with --cores 1.
        threads = stage.runtime.get("num_threads") or len(os.sched_getaffinity(0))
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
        # Threads that wait spin for some microseconds, then give their core away: never spinning halves the speed of small
        # models on an idle machine, spinning without a bound costs many times over on a busy one (docs/LOG.md).
        os.environ["GOMP_SPINCOUNT"] = "20000"
        stage.entry.begin(stage.components)
        work(stage)
        stage.entry.finish({"seconds": attempt.seconds(), "memos": stage.memos, "versions": versions()})
    return True


def _say(line: str) -> None:
    """Print a line in one write, so that stages that run beside each other do not mix theirs."""
    print(f"{line}\n", end="", flush=True)


def _member(group: str, manifest: Path) -> str:
    """The name of one of several upstream results: its source's, else its experiment's."""
    return manifest.stem if manifest.parent.name == group else manifest.parent.name


def _manifest(path: Path) -> dict[str, Any]:
    manifest = read_json(path)
    if not isinstance(manifest, dict) or "content" not in manifest:
        raise ValueError(f"{path} is missing or no manifest; run the command again")
    return manifest


def _title(request: Mapping[str, Any]) -> str:
    where = [each for each in (request["experiment"], request["source"]) if each]
    return f"{request['stage']} [{', '.join(where)}]" if where else str(request["stage"])


def _by_group(flat: Mapping[str, Any], groups: Sequence[str]) -> dict[str, Any]:
    """`GROUP/MEMBER` names as a dict per group, in the given order; empty groups included."""
    nested: dict[str, Any] = {group: {} for group in groups}
    for name, value in flat.items():
        group, _, member = name.partition("/")
        if member:
            nested[group][member] = value
        else:
            nested[name] = value
    return nested


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as nested dicts."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(".")
        place = nested
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return nested
