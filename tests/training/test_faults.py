"""Faults with a defined outcome: numbers that are not finite, cells without anchors, memory or disk that runs out."""

import json
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from dflash.model.target import Target
from dflash.training.checkpoint import Checkpoint, CheckpointWriter, Position, newest, read_checkpoint
from dflash.training.job import Job
from dflash.training.log import read_log
from dflash.training.micro_batch import Learner
from tests.training.tiny import POISON, Tensors, World, train


def weights(job: Job) -> dict[str, torch.Tensor]:
    return load_file(job.result / "drafter.safetensors")


def poison(row: int, sample: Tensors) -> Tensors:
    """Two samples of the train split hold a token that the target cannot embed."""
    ids, mask = sample
    if row in (9, 30):
        ids[1] = POISON
    return ids, mask


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("poisoned"), poisoned=True, change=poison)


@pytest.mark.parametrize("topology", ["colocated: 1", "colocated: 2", "targets: 1, drafters: 2"])
def test_a_step_that_is_not_finite_is_skipped_on_all_drafters(
    poisoned: World, topology: str, capfd: pytest.CaptureFixture[str]
) -> None:
    job = poisoned.job(f"skipped-{topology.replace(': ', '')}", topology)
    assert set(train(job)) == {0}
    # samples 9 and 30 of the file are numbers 7 and 26 of the train split, which lacks every eighth
    hit = {
        row["step"]
        for path in (job.state / "log").glob("samples-*.jsonl")
        for row in read_log(path)
        if {7, 26} & set(row["samples"])
    }
    metrics = pl.read_parquet(job.result / "metrics.parquet")
    assert set(metrics.filter("skipped")["step"]) == hit and 0 < len(hit) < 12
    assert metrics.filter(~pl.col("skipped"))["loss"].is_finite().all()
    assert json.loads((job.result / "fit.json").read_text())["skipped_steps"] == len(hit)
    assert all(value.isfinite().all() for value in weights(job).values())
    if topology == "colocated: 1":
        # ranks of their own write elsewhere
        said = capfd.readouterr().out
        assert said.count("the whole step is skipped on all drafters") == len(hit)
        assert said.count("features of the target not finite in step") == len(hit)


def test_too_many_bad_steps_in_a_row_stop_the_run_and_name_the_samples(tmp_path: Path) -> None:
    def everywhere(row: int, sample: Tensors) -> Tensors:
        sample[0][1] = POISON
        return sample

    world = World(tmp_path, poisoned=True, change=everywhere)
    job = world.job("stopped", training={"max_bad_steps": 3})
    with pytest.raises(
        ValueError, match=r"3 steps in a row were not finite .*features of the target .*samples \[\d"
    ):
        train(job)


def test_cells_and_ranks_without_anchors_stop_nobody(tmp_path: Path) -> None:
    """Short samples have one supervised token, so no anchor: whole cells have none, on one drafter or on both."""

    def short_ones_are_bare(row: int, sample: Tensors) -> Tensors:
        ids, mask = sample
        if len(ids) <= 16:
            mask[:] = 0
            mask[-1] = 1
        return ids, mask

    world = World(tmp_path, change=short_ones_are_bare)
    alone, two = world.job("alone"), world.job("two", "targets: 1, drafters: 2")
    assert train(alone) == [0] and set(train(two)) == {0}
    cells = pl.read_parquet(two.result / "cells.parquet")
    assert (cells["anchors"] == 0).any() and (cells["anchors"] > 0).any()
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(two)[name], value, rtol=1e-3, atol=1e-4)
    assert json.loads((two.result / "fit.json").read_text())["lost_samples"] == 0


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices on which more than two rows do not fit, neither on the drafter nor on the target."""
    loss, features = Learner.loss, Target.features

    def little_loss(self, rows, *others):  # type: ignore[no-untyped-def]
        if len(rows.ids_BS) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(self, rows, *others)

    def few_features(self, ids_BS, *others, **named):  # type: ignore[no-untyped-def]
        if len(ids_BS) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return features(self, ids_BS, *others, **named)

    monkeypatch.setattr(Learner, "loss", little_loss)
    monkeypatch.setattr(Target, "features", few_features)


def test_out_of_memory_is_one_line_with_the_shape_and_the_knob(tmp_path: Path, small_memory: None) -> None:
    world = World(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"out of memory on the target: a micro-batch of \d+ rows of \d+ tokens.*auto_reduce",
    ):
        train(world.job("stop", training={"heldout_interval_steps": 100}))


def test_a_micro_batch_that_does_not_fit_is_split_and_adds_up_to_the_same(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world = World(tmp_path)
    whole, split = world.job("whole"), world.job("split", runtime={"on_out_of_memory": "auto_reduce"})
    assert train(whole) == [0]
    request.getfixturevalue("small_memory")
    assert train(split) == [0]
    once, halves = (pl.read_parquet(job.result / "heldout_samples.parquet") for job in (whole, split))
    assert halves["sample"].to_list() == once["sample"].to_list()
    assert halves["loss_sum"].to_list() == pytest.approx(once["loss_sum"].to_list(), rel=1e-2)
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(split)[name], value, rtol=1e-3, atol=1e-4)


def test_a_disk_that_fills_during_a_save_keeps_the_checkpoint_before_and_training_goes_on(
    small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def checkpoint(step: int, size: int) -> Checkpoint:
        return Checkpoint(Position(step=step), {"seed": 1}, {"weight": torch.full((size,), float(step))}, {})

    writer = CheckpointWriter(small_disk, keep=2)
    writer.save(checkpoint(1, 1000))
    writer.save(checkpoint(2, 100_000))
    writer.close()
    assert writer.num_failed == 1
    kept = newest(small_disk)
    assert kept is not None and read_checkpoint(kept).position.step == 1
    assert "no space left for a checkpoint" in capfd.readouterr().err
    assert [path.name for path in small_disk.iterdir()] == [kept.name]
