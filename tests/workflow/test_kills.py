"""Kill the trainer, Snakemake, everything, or press Ctrl-C, at random moments of every stage: the same plain command
then ends with the content of an undisturbed run, and nothing is left behind."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.workflow.tiny import TIMEOUT_SECONDS, Project

STAGES = ("encode", "measure_lengths", "build_plan", "fit", "evaluate", "draw_report")
WAYS = ("script", "snakemake", "everything", "ctrl-c")
STEP_SECONDS = 0.15


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("kills") / "it's a project")


@pytest.fixture(scope="module")
def undisturbed(project: Project) -> dict[str, str]:
    project.run()
    return project.contents()


def disturb(project: Project, stage: str, way: str, dice: random.Random) -> None:
    """Start from nothing, kill at a random moment of a stage, and run the plain command again."""
    for name in ("results", ".store", ".snakemake", "logs"):
        shutil.rmtree(project.folder / name, ignore_errors=True)
    project.steps()
    process = project.start(seconds=4 * STEP_SECONDS)
    assert process.pid
    lock = project.wait_for(f".store/{stage}/*/lock")[0]
    holder = json.loads(lock.read_text())
    time.sleep(dice.uniform(0.0, 4 * STEP_SECONDS))
    if way == "script":
        end(holder["pid"])
    elif way == "snakemake":
        os.kill(process.pid, signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGINT if way == "ctrl-c" else signal.SIGKILL)
    process.join(TIMEOUT_SECONDS)
    project.run()


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        # It had ended by itself.
        return


def check(project: Project, undisturbed: dict[str, str], stage: str, way: str) -> None:
    assert project.contents() == undisturbed, f"{way} in {stage}"
    steps = [line for line in project.steps() if f"{stage} step" in line]
    # A killed step is done again, a saved one is not.
    assert len(steps) <= 4 + 1, steps
    deadline = time.monotonic() + 10
    while project.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not project.processes()
    assert not list(project.folder.glob(".store/*/*/lock")) and not list(
        project.folder.glob("results/**/*.tmp")
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_same_command_goes_on(project: Project, undisturbed: dict[str, str], way: str) -> None:
    stage = {"script": "fit", "snakemake": "fit", "everything": "encode", "ctrl-c": "build_plan"}[way]
    disturb(project, stage, way, random.Random(way))
    check(project, undisturbed, stage, way)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(30))
def test_thirty_kills(project: Project, undisturbed: dict[str, str], seed: int) -> None:
    stage, way = STAGES[seed % len(STAGES)], WAYS[seed % len(WAYS)]
    disturb(project, stage, way, random.Random(seed))
    check(project, undisturbed, stage, way)


def test_a_second_run_names_the_first(project: Project, undisturbed: dict[str, str]) -> None:
    project.configure("training", seed=99)
    process = project.start(seconds=4.0)
    project.wait_for(".store/fit/*/state/progress")
    first = (project.folder / "output.txt").rename(project.folder / "first.txt")
    output = project.run(ok=False)
    assert f"another run works in this folder: process {process.pid} on" in output
    assert "Traceback" not in output
    process.join(TIMEOUT_SECONDS)
    assert process.exitcode == 0, first.read_text()
    project.run()
    assert undisturbed.keys() == project.contents().keys()


def test_an_orphan_is_waited_for_and_its_work_goes_on(project: Project) -> None:
    project.configure("training", seed=100)
    project.steps()
    process = project.start(seconds=6.0)
    assert process.pid
    project.wait_for(".store/fit/*/state/progress")
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    # At once, while the orphan still lives.
    project.run()
    steps = [line for line in project.steps() if line.startswith("fit step")]
    assert steps[:2] == ["fit step 0", "fit step 1"] and len(steps) <= 5, steps


def test_a_lock_of_a_reused_process_number_is_free(project: Project, tmp_path: Path) -> None:
    lock = project.folder / ".store/run.lock"
    holder = json.loads(lock.read_text())
    lock.write_text(json.dumps({**holder, "pid": os.getpid(), "started": "1"}))
    project.configure("training", seed=101)
    assert "another run" not in project.run()
