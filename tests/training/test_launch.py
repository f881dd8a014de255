"""torchrun's launcher, with real processes: what it starts, and that nothing outlives it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dflash.training.job import Job
from dflash.training.launch import check_machine, launch
from dflash.training.stopping import SIGNAL_STATUS
from dflash.transfer.roles import Topology
from tests.training.tiny import World, train

CODE = """
import sys
from pathlib import Path
from dflash.training.job import Job
from dflash.training.launch import launch
sys.exit(launch(Job.load(Path(sys.argv[1]))))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def start_launcher(job: Job) -> subprocess.Popen[str]:
    path = job.state / "given.json"
    job.save(path)
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ranks_of(job: Job) -> list[int]:
    """Processes whose command names this job's file."""
    wanted = str(job.state / "job.json").encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if wanted in command and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
            found.append(int(folder.name))
    return sorted(found)


def wait_until(condition: object, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def saved(job: Job) -> bool:
    return any((job.state / "checkpoints").glob("step-*"))


def test_job_file_holds_the_whole_job(world: World, tmp_path: Path) -> None:
    job = world.job(
        "file", "targets: 2, drafters: 1", start_from=tmp_path / "x", objective={"labels": "target_argmax"}
    )
    job.save(tmp_path / "job.json")
    assert Job.load(tmp_path / "job.json") == job


def test_signal_and_killed_launcher(world: World) -> None:
    job = world.job(
        "launched",
        "targets: 1, drafters: 1",
        training={"num_steps": 120},
        runtime={"save_interval_seconds": 0.01},
    )
    process = start_launcher(job)
    wait_until(lambda: saved(job))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == SIGNAL_STATUS and "saved at step" in output, output
    assert not ranks_of(job)
    process = start_launcher(job)
    wait_until(lambda: len(ranks_of(job)) == 2)
    process.kill()
    wait_until(lambda: not ranks_of(job), 60)
    process.communicate()
    assert train(job) == [0, 0]
    alone = world.job("launched-alone", training={"num_steps": 120})
    assert train(alone) == [0]
    wanted = load_file(alone.result / "drafter.safetensors")
    assert all(
        torch.equal(value, wanted[name])
        for name, value in load_file(job.result / "drafter.safetensors").items()
    )


def test_killed_rank_is_named(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    job = world.job("killed-rank", "colocated: 2", training={"num_steps": 3000})
    process = start_launcher(job)
    wait_until(lambda: len(ranks_of(job)) == 2 and (job.state / "log" / "metrics.jsonl").exists())
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "rank 1 ended with -9" in output or "rank 0 ended with -9" in output, output
    assert not ranks_of(job)


def test_a_target_that_dies_while_its_drafter_receives_is_named(world: World) -> None:
    job = world.job("died-feeding", "targets: 1, drafters: 1", training={"num_steps": 3000})
    process = start_launcher(job)
    wait_until(lambda: len(ranks_of(job)) == 2 and (job.state / "log" / "metrics.jsonl").exists())
    target = rank_process(job, 0)
    # Stopped first: its drafter has taken all there is and sits in a receive when the target dies.
    os.kill(target, signal.SIGSTOP)
    time.sleep(2.0)
    os.kill(target, signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "rank 0 ended with -9" in output or "rank 0 (target 0)" in output, output
    assert not ranks_of(job)


def rank_process(job: Job, rank: int) -> int:
    """The process of a rank."""
    wanted = f"RANK={rank}".encode()
    return next(
        each for each in ranks_of(job) if wanted in Path(f"/proc/{each}/environ").read_bytes().split(b"\0")
    )


def test_more_ranks_than_gpus_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    job = world.job("refused", "targets: 6, drafters: 1", runtime={"device": "cuda"})
    with pytest.raises(ValueError, match=r"needs 7 GPUs on every machine, but 4 can be used"):
        launch(job)
    with pytest.raises(ValueError, match=r"has 7 ranks, which runtime.num_nodes 2 does not divide"):
        check_machine(
            world.job("refused", "targets: 6, drafters: 1", runtime={"num_nodes": 2}), Topology(6, 1, False)
        )
