"""Whatever ends a run, the rerun reaches the weights of an undisturbed one, bit by bit."""

import os
import random
import signal
import time
from multiprocessing.context import ForkServerProcess

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from safetensors.torch import load_file

from dflash.batching.description import PlanConfig
from dflash.batching.plan import make_plan, save_plan
from dflash.data.shards import Shards
from dflash.training.job import Job
from dflash.training.log import METRICS, consumed_samples, read_log
from dflash.training.stopping import SIGNAL_STATUS, WALL_TIME_STATUS
from tests.training.tiny import World, finish, kill, start, train

LONG = {"num_steps": 40}
# Saves as often as the disk allows, so that kills hit saves too.
SAVING = {"save_interval_seconds": 0.001}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def undisturbed(world: World) -> dict[str, torch.Tensor]:
    job = world.job("undisturbed", training=LONG)
    assert train(job) == [0]
    return load_file(job.result / "drafter.safetensors")


def check_same(job: Job, wanted: dict[str, torch.Tensor]) -> None:
    reached = load_file(job.result / "drafter.safetensors")
    assert all(torch.equal(value, wanted[name]) for name, value in reached.items())
    for table in ("heldout.parquet", "heldout_samples.parquet"):
        assert_frame_equal(
            pl.read_parquet(job.result / table),
            pl.read_parquet(job.result.parents[1] / "undisturbed" / "result" / table),
            check_exact=True,
        )
    trained = list(consumed_samples(job.state / "log"))
    assert len(trained) == sum(row["samples"] for row in read_log(job.state / "log" / METRICS))


def wait_for_step(job: Job, step: int, processes: list[ForkServerProcess]) -> None:
    deadline = time.monotonic() + 240
    while all(row["step"] < step for row in read_log(job.state / "log" / METRICS)):
        assert time.monotonic() < deadline and all(each.is_alive() for each in processes)
        time.sleep(0.02)


def test_time_limit_after_every_step(world: World, undisturbed: dict[str, torch.Tensor]) -> None:
    # The limit leaves no time beyond saving, so each of these runs makes one step.
    limited = world.job("limited", training=LONG, runtime={"wall_time_seconds": 5.0})
    for _ in range(3):
        assert train(limited) == [WALL_TIME_STATUS]
    assert [row["step"] for row in read_log(limited.state / "log" / METRICS)] == [1, 2, 3]
    job = world.job("limited", training=LONG)
    assert train(job) == [0]
    check_same(job, undisturbed)


def test_signal_then_fewer_targets(world: World, undisturbed: dict[str, torch.Tensor]) -> None:
    first = world.job("moved", "targets: 3, drafters: 1", training=LONG)
    processes, store = start(first)
    wait_for_step(first, 8, processes)
    for process in processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)
    assert set(finish(processes, 60)) == {SIGNAL_STATUS}
    del store
    second = world.job("moved", "targets: 2, drafters: 1", training=LONG)
    assert set(train(second)) == {0}
    check_same(second, undisturbed)
    assert '"targets: 3, drafters: 1"' in (second.result / "measured" / "run.json").read_text()


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
def test_kills_at_random_times(world: World, undisturbed: dict[str, torch.Tensor], count: int) -> None:
    job = world.job(f"killed-{count}", "targets: 1, drafters: 1", training=LONG, runtime=SAVING)
    generator = random.Random(count)
    killed = 0
    while True:
        processes, store = start(job)
        if killed == count:
            assert finish(processes) == [0, 0]
            break
        # Times from start-up to the last steps.
        time.sleep(generator.uniform(0.0, 3.0))
        number = generator.randrange(len(processes))
        victim = processes[number]
        hit = victim.is_alive()
        spoke = store.check([f"dflash/beat/{number}"])
        kill(victim)
        if not spoke:
            # Nobody heard of it yet: here the launcher, which is not part of this test, ends the others.
            for process in processes:
                kill(process)
        codes = finish(processes, 60)
        killed += 1
        if hit and victim.exitcode != 0 and 0 in codes:
            # A target may end well while its drafter is killed over the result; then all steps are through.
            steps = [row["step"] for row in read_log(job.state / "log" / METRICS)]
            assert codes[0] == 0 and steps[-1] == LONG["num_steps"]
        del store
    check_same(job, undisturbed)


def test_other_settings_are_refused_by_name(world: World) -> None:
    limits = {"wall_time_seconds": 5.0}
    assert train(world.job("refused", runtime=limits)) == [WALL_TIME_STATUS]
    with pytest.raises(ValueError, match=r"objective.weighting is 'uniform', was 'decay'"):
        train(world.job("refused", objective={"weighting": "uniform"}))
    with pytest.raises(ValueError, match=r"training.learning_rate is 0.02, was 0.01"):
        train(world.job("refused", training={"learning_rate": 0.02}))
    samples = Shards([world.folder / "00000-tiny.arrow"], "train")
    plan = world.folder / "other-plan"
    plan.mkdir()
    config = PlanConfig(budget_tokens=64, budget_anchors=64, cells_per_step=3, seed=7)
    save_plan(make_plan(samples.lengths_N, samples.supervised_N, config, [8, 16, 24]), plan)
    with pytest.raises(ValueError, match=r"plan.seed is 7, was 0"):
        train(world.job("refused", plan=plan))


def test_warm_start_begins_at_the_other_drafter(world: World, undisturbed: dict[str, torch.Tensor]) -> None:
    source = world.folder / "undisturbed" / "result"
    # A learning rate too small to move anything but the last bits.
    job = world.job("warm", training={"num_steps": 1, "learning_rate": 1e-12}, start_from=source)
    assert train(job) == [0]
    reached = load_file(job.result / "drafter.safetensors")
    for name, value in undisturbed.items():
        torch.testing.assert_close(reached[name], value, rtol=1e-5, atol=1e-6)
    world_job = world.job("warm-other", start_from=source)
    with pytest.raises(ValueError, match="training.start_from: the drafter in .* has block_size 4"):
        train(Job(**{**vars(world_job), "drafter": world_job.drafter.model_copy(update={"block_size": 5})}))
