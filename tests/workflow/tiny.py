"""A tiny pipeline in a temporary project: the real Snakefile, rules, config and store with scripts that take no time.

Every script writes a digest of all that it saw: its settings, its inputs' contents, its source files and the constants
of the modules it imports. So two results are equal exactly when everything that they depend on is.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COPIED = (
    "Snakefile",
    "rules",
    "profiles",
    "dflash/__init__.py",
    "dflash/__main__.py",
    "dflash/config",
    "dflash/store",
)
TIMEOUT_SECONDS = 120

# stage: (settings it sees, modules it imports)
STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "export_corpus": ((), ("text",)),
    "regenerate": (("data.sources", "regeneration"), ("text",)),
    "encode": (("target", "data.max_length", "data.sources"), ("text", "numbers")),
    "report_data": (("data.sources",), ("text",)),
    "measure_lengths": ((), ("numbers",)),
    "choose_boundaries": (("batching.num_buckets", "batching.alignment"), ("numbers",)),
    "build_plan": (("batching.policy", "batching.seed", "batching.budget_tokens"), ("numbers",)),
    "run_preflight": (("drafter",), ()),
    "measure_rates": (("drafter",), ()),
    "fit": (("drafter", "objective", "training"), ("weights", "numbers")),
    "evaluate": (("evaluation",), ("weights",)),
    "export_drafter": (("export",), ("weights",)),
    "draw_report": (("report", "experiment"), ("drawing",)),
    "draw_comparison": ((), ("drawing",)),
}
MODULES = ("text", "numbers", "weights", "drawing")

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


def content(place):
    if isinstance(place, dict):
        return [content(each) for each in place.values()]
    return [path.read_text() for path in sorted(place.rglob("*")) if path.is_file() and "measured" not in path.parts]


def per_file(path):
    def work(folder):
        (folder / "length.txt").write_text(str(len(path.read_text().split())))
        with open("worked.log", "a") as file:
            print("encode_file", path.name, file=file)

    return work


def do(stage, name, constants):
    with open("worked.log", "a") as file:
        print(name, *([stage.source] if name in ("encode", "regenerate") else []), file=file)
    if Path("fail_" + name).exists():
        raise ValueError(f"{name} was told to fail")
    saved = stage.state / "progress"
    for step in range(int(saved.read_text()) if saved.exists() else 0, 4):
        time.sleep(float(os.environ.get("TINY_SECONDS", "0")) / 4)
        saved.write_text(str(step + 1))
    parts = [name, stage.settings, [content(each) for each in stage.inputs.values()], constants]
    if name == "encode":
        inside = [stage.memo("file", {"sha256": hashlib.sha256(p.read_bytes()).hexdigest()}, per_file(p)) for p in stage.sources]
        parts.append([content(folder) for folder in inside])
    elif stage.sources:
        parts.append([path.read_text() for path in stage.sources])
    if name in ("measure_lengths",):
        # An early stop: what comes out depends on the first source file's first letters alone.
        parts = [constants, [content(each) for each in stage.inputs.values()]]
    text = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    (stage.folder / f"{name}.txt").write_text(text)
    (stage.folder / "measured").mkdir()
    (stage.folder / "measured" / "seconds.txt").write_text(str(time.time()))
'''


class Project:
    """A temporary project: edit it, run it, ask what worked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / name)
        for name in MODULES:
            self.write(f"dflash/tiny/{name}.py", f'"""{name}"""\nCONSTANT = 1\n')
        self.write("dflash/tiny/__init__.py", '"""Tiny."""\n')
        self.write("dflash/tiny/steps.py", STEPS)
        self.write("workflow_scripts/__init__.py", '"""Scripts."""\n')
        for stage, (settings, modules) in STAGES.items():
            imports = "\n".join(f"    from dflash.tiny import {each}" for each in modules) or "    pass"
            constants = "[" + ", ".join(f"{each}.CONSTANT" for each in modules) + "]"
            text = SCRIPT.format(stage=stage, settings=settings, imports=imports, constants=constants)
            self.write(f"workflow_scripts/{stage}.py", text)
        self.write("data/one.txt", "a b c\n")
        self.write("data/two.txt", "d e f g\n")
        self.write("dflash/demo/model.bin", "weights\n")
        self.config: dict[str, Any] = {
            "regeneration": {"engine": "off"},
            "data": {"sources": [{"name": "texts", "location": "data"}]},
        }

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def command(self, *arguments: str) -> list[str]:
        snakemake = Path(sys.executable).with_name("snakemake")
        return [str(snakemake), "--cores", "2", *arguments]

    def start(self, *arguments: str, seconds: float = 0.0) -> subprocess.Popen[str]:
        self.write("config/config.yaml", yaml.safe_dump(self.config))
        environment = {**os.environ, "TINY_SECONDS": str(seconds), "PATH": "/usr/bin:/bin"}
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, ok: bool = True) -> str:
        process = self.start(*(arguments or ("train",)))
        try:
            self.output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert (process.returncode == 0) == ok, self.output
        return self.output

    def worked(self) -> set[str]:
        """What did work (missed the store) since the last question."""
        log = self.folder / "worked.log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        assert len(lines) == len(set(lines)), f"done twice: {lines}"
        return set(lines)
