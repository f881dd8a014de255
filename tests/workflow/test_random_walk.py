"""A random walk over the tiny pipeline, checked at every step against an oracle that recomputes everything from scratch.

The oracle knows nothing of requests, keys or times. It says what every result must hold, and what must work: exactly
the stages whose settings, code and inputs, taken together, never went through before.
"""

import copy
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash.config.root import resolve
from tests.workflow.tiny import MODULES, STAGES, STEPS, TIMEOUT_SECONDS, Project

UPSTREAM: dict[str, tuple[str, ...]] = {
    "encode": (),
    "report_data": ("encode",),
    "measure_lengths": ("encode",),
    "choose_boundaries": ("measure_lengths",),
    "build_plan": ("measure_lengths", "choose_boundaries"),
    "run_preflight": ("build_plan",),
    "fit": ("build_plan", "encode"),
    "evaluate": ("fit", "encode"),
    "export_drafter": ("fit",),
}
UPSTREAM["draw_report"] = tuple(stage for stage in UPSTREAM if stage != "encode")
PLAN = ("encode", "measure_lengths", "choose_boundaries", "build_plan")


class Oracle:
    """What every result must hold, from the project's files alone, and what each is made of."""

    def __init__(self, project: Project, scratch: Path) -> None:
        self._project = project
        self._scratch = scratch

    def expect(self) -> tuple[dict[str, str], dict[str, str]]:
        """The text of every stage's result; and what every stage and source file is made of, as one string."""
        steps: dict[str, Any] = {}
        exec(STEPS, steps)
        steps["log"] = lambda *words: None
        shutil.rmtree(self._scratch, ignore_errors=True)
        settings = resolve(self._project.config)[1]["default"].model_dump(mode="json")
        files = sorted((self._project.folder / "data").glob("*.txt"))
        texts: dict[str, str] = {}
        made_of: dict[str, str] = {}
        for stage, upstream in UPSTREAM.items():
            names, modules = STAGES[stage]
            seen = {name: self._setting(settings, name) for name in names}
            above = [seen, [self._code(name) for name in modules], [texts[name] for name in upstream]]
            if stage == "encode":
                made_of |= {f"encode file {path.name}": repr([above, path.read_text()]) for path in files}
                above.append([path.read_text() for path in files])
            made_of[stage] = repr(above)
            fake = self._stage(stage, seen, upstream, files)
            steps["do"](fake, stage, [self._constant(name) for name in modules])
            texts[stage] = (fake.folder / f"{stage}.txt").read_text()
        return texts, made_of

    def _stage(
        self, stage: str, seen: dict[str, Any], upstream: tuple[str, ...], files: list[Path]
    ) -> SimpleNamespace:
        folder, state = self._scratch / stage, self._scratch / f"{stage}.state"
        for each in (folder, state):
            each.mkdir(parents=True)

        def memo(name: str, parts: dict[str, str], work: Callable[[Path], None]) -> Path:
            place = self._scratch / parts["file"]
            place.mkdir(exist_ok=True)
            work(place)
            return place

        nested: dict[str, Any] = {}
        for name, value in seen.items():
            *section, key = name.split(".")
            (nested.setdefault(section[0], {}) if section else nested)[key] = value
        inputs = {
            each: {"texts": self._scratch / each} if each == "encode" else self._scratch / each
            for each in upstream
        }
        return SimpleNamespace(
            settings=nested, inputs=inputs, folder=folder, state=state, sources=files, memo=memo
        )

    def _setting(self, settings: dict[str, Any], name: str) -> Any:
        if name == "experiment":
            return "default"
        for part in name.split("."):
            settings = settings[part]
        return settings

    def _code(self, module: str) -> list[str]:
        lines = (self._project.folder / f"dflash/tiny/{module}.py").read_text().splitlines()
        return [line for line in lines if line and not line.startswith(("#", '"""'))]

    def _constant(self, module: str) -> int:
        return int(next(line for line in self._code(module) if line.startswith("CONSTANT")).split("=")[1])


class Walk:
    """The project, the dice, and what went through so far."""

    def __init__(self, project: Project, scratch: Path, seed: int) -> None:
        self.project = project
        self.oracle = Oracle(project, scratch)
        self.dice = random.Random(seed)
        self.count = 0
        self.done: set[str] = set()
        # Work of a killed run: it may or may not have gone through.
        self.uncertain: set[str] = set()
        self.history = [copy.deepcopy(project.config)]
        self.actions = [
            self.edit_file, self.respace_file, self.touch, self.add_file, self.remove_file,
            self.bump_constant, self.comment, self.useless_code, self.change_setting, self.change_setting,
            self.earlier_config, self.delete_manifest, self.edit_result, self.forget_provenance, self.damage, self.nothing,
        ]  # fmt: skip

    def step(self) -> None:
        """Change something, run, and check."""
        action = self.dice.choice(self.actions)
        action()
        how = self.dice.choices(["plain", "plan", "fail", "kill", "force"], [12, 1, 2, 2, 1])[0]
        what = f"{action.__name__}, then {how}"
        if how == "fail":
            self.run_failing(what)
        elif how == "kill":
            self.run_killed()
        elif how == "force":
            self.run(what, ["-R", self.dice.choice(list(UPSTREAM)), "--", "train"], tuple(UPSTREAM))
        elif how == "plan":
            self.run(what, ["plan"], PLAN)
        self.run(what, ["train"], tuple(UPSTREAM))

    def missing(self, stages: tuple[str, ...]) -> tuple[dict[str, str], set[str], set[str]]:
        """The expected texts, all that must work, and all of that which may have gone through already."""
        texts, made_of = self.oracle.expect()
        new = {name for name, what in made_of.items() if what not in self.done}
        new = {name for name in new if name in stages or (" file " in name and "encode" in new)}
        return texts, new, {name for name in new if made_of[name] in self.uncertain}

    def run(self, what: str, arguments: list[str], stages: tuple[str, ...]) -> None:
        texts, new, uncertain = self.missing(stages)
        self.project.run(*arguments)
        worked = self.project.worked()
        # A source file of an interrupted `encode` may be through while `encode` is not, or the other way round.
        assert new - uncertain <= worked <= new, (
            f"{what}: {worked} worked, expected {new}, of that unsure {uncertain}"
        )
        contents = self.project.contents()
        for stage in stages:
            name = (
                f"default/encode/texts/{stage}.txt" if stage == "encode" else f"default/{stage}/{stage}.txt"
            )
            assert contents[name] == texts[stage], f"{what}: {name} is stale"
        self.remember(new)

    def run_failing(self, what: str) -> None:
        stage = self.dice.choice(list(UPSTREAM))
        _, new, uncertain = self.missing(tuple(UPSTREAM))
        mark = self.project.folder / f"fail_{stage}"
        mark.touch()
        self.project.run(ok=stage not in new or stage in uncertain)
        mark.unlink()
        worked = self.project.worked()
        assert worked <= new, f"{what} of {stage}: {worked} worked, missing were {new}"
        self.remember(worked - {stage})

    def run_killed(self) -> None:
        process = self.project.start("train", seconds=0.2)
        assert process.pid
        # No run takes longer than ten stages of 0.2 s and the start.
        process.join(self.dice.uniform(0.5, 4.0))
        if process.is_alive():
            os.killpg(process.pid, self.dice.choice([signal.SIGKILL, signal.SIGINT]))
        process.join(TIMEOUT_SECONDS)
        deadline = time.monotonic() + 10
        while self.project.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        _, made_of = self.oracle.expect()
        self.uncertain |= {made_of[name] for name in self.project.worked()}

    def remember(self, names: set[str]) -> None:
        _, made_of = self.oracle.expect()
        self.done |= {made_of[name] for name in names}
        self.uncertain -= self.done

    def file(self) -> str:
        return (
            f"data/{self.dice.choice(sorted(path.name for path in (self.project.folder / 'data').iterdir()))}"
        )

    def module(self) -> str:
        return f"dflash/tiny/{self.dice.choice(MODULES)}.py"

    def add_text(self, name: str, text: str) -> None:
        path = self.project.folder / name
        status = path.stat() if path.exists() else None
        self.project.write(name, (path.read_text() if status else "") + text)
        if status and self.dice.random() < 0.3:
            # An edit that keeps the old time.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def edit_file(self) -> None:
        self.count += 1
        self.add_text(self.file(), f"word{self.count} " * self.dice.randint(1, 3))

    def respace_file(self) -> None:
        self.add_text(self.file(), " ")

    def touch(self) -> None:
        for name in (self.file(), self.module()):
            (self.project.folder / name).touch()

    def add_file(self) -> None:
        self.count += 1
        self.add_text(f"data/file{self.count}.txt", f"new{self.count}\n")

    def remove_file(self) -> None:
        if len(list((self.project.folder / "data").iterdir())) > 1:
            (self.project.folder / self.file()).unlink()

    def bump_constant(self) -> None:
        name = self.module()
        self.count += 1
        lines = (self.project.folder / name).read_text().splitlines()
        kept = [line for line in lines if not line.startswith("CONSTANT")]
        self.project.write(name, "\n".join([*kept, f"CONSTANT = {self.dice.choice([1, 2, self.count])}", ""]))

    def comment(self) -> None:
        self.add_text(self.module(), "# a comment\n")

    def useless_code(self) -> None:
        self.add_text(self.module(), f"OTHER = {self.count}\n")

    def change_setting(self) -> None:
        section, key, values = self.dice.choice(
            [
                ("batching", "num_buckets", [4, 6, 8]),
                ("batching", "max_buckets", [4, 6, 8]),
                ("batching", "policy", ["bucketed", "packed"]),
                ("training", "seed", [0, 1]),
                ("evaluation", "seed", [0, 1]),
                ("report", "title", [None, "a", "b"]),
                ("runtime", "num_threads", [None, 1, 2]),
                ("data", "max_length", [1024, 2048]),
            ]
        )
        self.project.configure(section, **{key: self.dice.choice(values)})
        self.history.append(copy.deepcopy(self.project.config))

    def earlier_config(self) -> None:
        self.project.config = copy.deepcopy(self.dice.choice(self.history))

    def delete_manifest(self) -> None:
        self.dice.choice(sorted((self.project.folder / "results").glob("default/*.json"))).unlink()

    def edit_result(self) -> None:
        path = self.dice.choice(sorted((self.project.folder / "results/default").glob("*/*.txt")))
        with path.open("r+") as file:
            file.write("edited")

    def forget_provenance(self) -> None:
        shutil.rmtree(self.project.folder / ".snakemake")

    def damage(self) -> None:
        """Damage the store's copy of a present result; what it was made of is then missing again."""
        stage = self.dice.choice([each for each in UPSTREAM if each != "encode"])
        manifest = json.loads((self.project.folder / f"results/default/{stage}.json").read_text())
        stored = self.project.folder / f".store/{stage}/{manifest['key'][:32]}/result/{stage}.txt"
        stored.write_text("damaged")
        _, made_of = self.oracle.expect()
        self.done.discard(made_of[stage])

    def nothing(self) -> None:
        return


@pytest.fixture
def walk(tmp_path: Path, request: pytest.FixtureRequest) -> Walk:
    return Walk(Project(tmp_path / "it's a project"), tmp_path / "scratch", request.param)


@pytest.mark.parametrize("walk", [1], indirect=True)
def test_twenty_random_steps(walk: Walk) -> None:
    walk.run("first", ["train"], tuple(UPSTREAM))
    for _ in range(20):
        walk.step()


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("walk", range(10, 15), indirect=True)
def test_two_hundred_random_steps(walk: Walk) -> None:
    walk.run("first", ["train"], tuple(UPSTREAM))
    for _ in range(40):
        walk.step()
