"""A tiny pipeline in a temporary project: the real Snakefile, rules, config and store, with scripts that take no time.

Every script writes a digest of all that it saw: its settings, its inputs' contents, its source files, the constants of
the modules it imports. So two results are equal exactly when everything that they depend on is.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COPIED = (
    "Snakefile",
    "rules",
    "profiles",
    "report",
    "dflash/__init__.py",
    "dflash/__main__.py",
    "dflash/config",
    "dflash/store",
)
TIMEOUT_SECONDS = 300
MODULES = ("text", "numbers", "weights", "drawing", "unrelated")

# stage: (settings it sees, modules it imports)
STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "export_corpus": ((), ("text",)),
    "pretrain_demo": ((), ("text",)),
    "regenerate": (("data.sources", "regeneration"), ("text",)),
    "encode": (("target", "data.max_length", "data.sources"), ("text", "numbers")),
    "report_data": (("data.max_length",), ("text",)),
    "measure_lengths": ((), ("numbers",)),
    "choose_boundaries": (("batching.num_buckets", "batching.max_buckets"), ("numbers",)),
    "build_plan": (("batching.policy", "batching.seed", "batching.budget_tokens"), ("numbers",)),
    "run_preflight": (("drafter",), ()),
    "measure_rates": (("drafter",), ()),
    "fit": (("drafter", "objective", "training"), ("weights", "numbers")),
    "evaluate": (("evaluation",), ("weights",)),
    "export_drafter": (("export",), ("weights",)),
    "draw_report": (("report", "experiment"), ("drawing",)),
    "draw_comparison": ((), ("drawing",)),
    "draw_data_report": ((), ("drawing",)),
}

SCRIPT = '''"""{stage}"""
from dflash.store.stage import Stage, run_stage

SETTINGS = {settings!r}


def work(stage: Stage) -> None:
{imports}
    from dflash.tiny.steps import do

    do(stage, {stage!r}, {constants})


if __name__ == "__main__":
    run_stage(work)
'''

STEPS = '''"""What every tiny script does."""
import hashlib
import json
import os
import time
from pathlib import Path

PAGES = {"draw_report": "report.html", "draw_comparison": "comparison.html", "draw_data_report": "data.html"}


def log(*words):
    with open("worked.log", "a") as file:
        print(*words, file=file)


def content(place):
    if isinstance(place, dict):
        return [content(each) for each in place.values()]
    return [path.read_text() for path in sorted(place.rglob("*")) if path.is_file() and "measured" not in path.parts]


def digest(parts):
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def num_words(path):
    def work(folder):
        log("encode", "file", path.name)
        (folder / "words.txt").write_text(str(len(path.read_text().split())))

    return work


def do(stage, name, constants):
    log(name)
    if Path("fail_" + name).exists():
        raise ValueError(f"{name} was told to fail")
    saved = stage.state / "progress"
    for step in range(int(saved.read_text()) if saved.exists() else 0, 4):
        log(name, "step", step)
        time.sleep(float(os.environ.get("TINY_SECONDS", "0")) / 4)
        # as a checkpoint is saved: a kill leaves the old one or the new one
        part = saved.with_suffix(".part")
        part.write_text(str(step + 1))
        os.replace(part, saved)
    words = [
        stage.memo("file", {"file": hashlib.sha256(path.read_bytes()).hexdigest()}, num_words(path))
        for path in (stage.sources if name == "encode" else [])
    ]
    inputs = [content(each) for _, each in sorted(stage.inputs.items())]
    settings = {} if name == "encode" else stage.settings
    (stage.folder / f"{name}.txt").write_text(digest([name, settings, inputs, [content(each) for each in words], constants]))
    if name in PAGES:
        (stage.folder / PAGES[name]).write_text(f"<title>{name}</title>")
    (stage.folder / "measured").mkdir()
    (stage.folder / "measured" / "seconds.txt").write_text(str(time.time()))
'''


def _become_snakemake(folder: Path, arguments: list[str], output: Path, seconds: float) -> None:
    """Turn a freshly forked process into a `snakemake` command of its own session."""
    os.setsid()
    os.chdir(folder)
    os.environ.update(TINY_SECONDS=str(seconds), PATH="/usr/bin:/bin", PYTHONPATH="")
    sys.path = [each for each in sys.path if Path(each or ".").resolve() != ROOT]
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["snakemake", *arguments]
    from snakemake.cli import main

    main()


# Importing Snakemake takes longer than most runs here; each run is forked from a process that did it once.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["snakemake.cli", "snakemake.executors.local", "pydantic", "tests.workflow.tiny"]
)


class Project:
    """A temporary project: edit it, run it, ask what worked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / name)
        for name in ("dflash/tiny", "workflow_scripts"):
            self.write(f"{name}/__init__.py", '"""Tiny."""\n')
        for name in MODULES:
            self.write(f"dflash/tiny/{name}.py", f'"""{name}"""\nCONSTANT = 1\n')
        self.write("dflash/tiny/steps.py", STEPS)
        for stage, (settings, modules) in STAGES.items():
            imports = "\n".join(f"    from dflash.tiny import {each}" for each in modules)
            constants = "[" + ", ".join(f"{each}.CONSTANT" for each in modules) + "]"
            text = SCRIPT.format(stage=stage, settings=settings, imports=imports, constants=constants)
            self.write(f"workflow_scripts/{stage}.py", text)
        self.write("dflash/demo/model.bin", "weights\n")
        self.write("data/one.txt", "a b c\n")
        self.write("data/two.txt", "d e f g\n")
        self.config: dict[str, Any] = {
            "regeneration": {"engine": "off"},
            "data": {"sources": [{"name": "texts", "location": "data"}]},
            "batching": {"num_buckets": 6, "max_buckets": 9},
        }
        self.output = ""

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        self.write(name, text.replace(old, new))

    def configure(self, section: str, **settings: Any) -> None:
        self.config[section] = {**self.config.get(section, {}), **settings}

    def start(self, *arguments: str, seconds: float = 0.0) -> BaseProcess:
        """Start Snakemake in a session of its own; every step of a stage takes a quarter of `seconds`."""
        self.write("config/config.yaml", yaml.safe_dump(self.config, sort_keys=False))
        words = ["--cores", "2", *(arguments or ("train",))]
        process = FORKS.Process(
            target=_become_snakemake, args=(self.folder, words, self.folder / "output.txt", seconds)
        )
        process.start()
        return process

    def run(self, *arguments: str, ok: bool = True, seconds_at_most: float = TIMEOUT_SECONDS) -> str:
        """Run Snakemake to its end; returns what it printed."""
        process = self.start(*arguments)
        process.join(seconds_at_most)
        if process.is_alive():
            assert process.pid
            os.killpg(process.pid, signal.SIGKILL)
        self.output = (self.folder / "output.txt").read_text()
        assert (process.exitcode == 0) == ok, self.output
        return self.output

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call `python -m dflash` in the project."""
        words = [sys.executable, "-m", "dflash", *arguments]
        return subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )

    def steps(self) -> list[str]:
        """What was done since the last question, line by line."""
        log = self.folder / "worked.log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def worked(self) -> set[str]:
        """The stages and source files that did work (missed the store) since the last question; each at most once."""
        lines = [line for line in self.steps() if " step " not in line]
        assert len(lines) == len(set(lines)), f"done twice: {lines}"
        return set(lines)

    def contents(self) -> dict[str, str]:
        """What every published result holds, by its name."""
        return {
            path.relative_to(self.folder / "results").as_posix(): path.read_text()
            for path in (self.folder / "results").rglob("*.txt")
            if "measured" not in path.parts
        }

    def processes(self) -> list[int]:
        """Processes that live in the project's folder."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if Path(os.readlink(entry / "cwd")) == self.folder:
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def wait_for(self, pattern: str, seconds: float = 240.0) -> list[Path]:
        """Wait until files exist."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := list(self.folder.glob(pattern)):
                return found
            time.sleep(0.02)
        raise AssertionError(f"no {pattern} after {seconds} s: {(self.folder / 'output.txt').read_text()}")
