"""Training on two nodes of a real SLURM, through Snakemake's executor."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.slurm.cluster import Cluster, missing, start
from tests.workflow.test_main_job import ROOT, SNAKEMAKE, config_of, conversations, snakemake

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]
PROFILE = ROOT / "profiles" / "slurm"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    running = start(tmp_path_factory.mktemp("slurm"), (17000, 17001, 17002))
    yield running
    running.stop()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose plan is made, for one target on one node and one drafter on the other."""
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in conversations(120)))
    runtime = {"device": "cpu", "topology": "targets: 1, drafters: 1", "num_nodes": 2, "num_threads": 1}
    training = {"num_steps": 40, "heldout_interval_steps": 20, "heldout_samples": 4}
    config_of(tmp_path, runtime={**runtime, "save_interval_seconds": 1.0}, training=training)
    done = snakemake(tmp_path, "results/default/run_preflight.json")
    assert done.returncode == 0, done.stdout + done.stderr
    return tmp_path


def command(project: Path, *more: str) -> list[str]:
    """`fit` on the cluster, by the shipped profile less the GPUs, CPUs and memory that this cluster lacks."""
    profile = yaml.safe_load((PROFILE / "config.v9+.yaml").read_text())
    fit = profile["set-resources"]["fit"]
    for name in ("gres", "tasks_per_gpu"):
        del fit[name]
    fit.update(cpus_per_task=1, mem_mb=2000)
    folder = project / "profile"
    folder.mkdir(exist_ok=True)
    (folder / "config.v9+.yaml").write_text(yaml.safe_dump(profile))
    return [
        str(SNAKEMAKE),
        "-s",
        str(ROOT / "Snakefile"),
        "results/default/fit.json",
        "--configfile",
        "small.yaml",
        "--workflow-profile",
        str(folder),
        "--slurm-status-command",
        "squeue",
        "--slurm-init-seconds-before-status-checks",
        "5",
        "--seconds-between-status-checks",
        "5",
        *more,
    ]


def weights(project: Path) -> bytes:
    return (project / "results" / "default" / "fit" / "drafter.safetensors").read_bytes()


def test_two_nodes_train_the_same_drafter_as_one(cluster: Cluster, project: Path) -> None:
    done = subprocess.run(
        command(project),
        cwd=project,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    log = (project / "logs" / "default" / "fit.log").read_text()
    assert "step 40/40" in log
    on_two = weights(project)
    shutil.rmtree(project / ".store" / "fit")
    (project / "results" / "default" / "fit.json").unlink()
    config = (project / "small.yaml").read_text().replace("num_nodes: 2", "num_nodes: 1")
    (project / "small.yaml").write_text(config)
    alone = snakemake(project, "results/default/fit.json")
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert weights(project) == on_two


def test_a_lost_node_stops_the_run_and_the_next_goes_on(cluster: Cluster, project: Path) -> None:
    config = (project / "small.yaml").read_text().replace("num_steps: 40", "num_steps: 200")
    (project / "small.yaml").write_text(config)
    running = subprocess.Popen(
        command(project, "--retries", "0"),
        cwd=project,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    log = project / "logs" / "default" / "fit.log"
    try:
        _wait_for(log, "step ", running)
        cluster.kill_node("n2")
        said, _ = running.communicate(timeout=300)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode != 0, said
    cluster.start_node("n2")
    again = subprocess.run(
        command(project),
        cwd=project,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "going on from step" in log.read_text()


def test_a_met_time_limit_is_submitted_again_until_the_run_is_finished(
    cluster: Cluster, project: Path
) -> None:
    config = yaml.safe_load((project / "small.yaml").read_text())
    config["training"]["num_steps"] = 400
    # a minute's steps at the least, so that a start and a good part of them fit on a slow machine too
    config["runtime"]["wall_time_seconds"] = 60
    (project / "small.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        command(project),
        cwd=project,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    log = (project / "logs" / "default" / "fit.log").read_text()
    assert "going on from step" in log
    assert "step 400/400" in log


def _wait_for(log: Path, text: str, running: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 200
    while time.monotonic() < end:
        if log.exists() and text in log.read_text():
            return
        assert running.poll() is None, running.communicate()[0]
        time.sleep(0.5)
    raise AssertionError(f"{log} never said {text!r}; Python is {sys.version}")
