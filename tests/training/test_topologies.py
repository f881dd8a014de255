"""The same weights on every topology, and every sample trained on exactly as often as the plan says."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from dflash.data.shards import Shards
from dflash.training.job import Job
from dflash.training.log import consumed_samples
from tests.training.tiny import World, train


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def weights(job: Job) -> dict[str, torch.Tensor]:
    return load_file(job.result / "drafter.safetensors")


@pytest.fixture(scope="module")
def alone(world: World) -> dict[str, torch.Tensor]:
    """The weights that one process reaches."""
    job = world.job("alone")
    assert train(job) == [0]
    return weights(job)


@pytest.fixture(scope="module")
def two_drafters(world: World) -> dict[str, torch.Tensor]:
    """The weights that two colocated ranks reach."""
    job = world.job("colocated-2", "colocated: 2")
    assert train(job) == [0, 0]
    check_account(job)
    return weights(job)


def check_account(job: Job) -> None:
    account = json.loads((job.result / "fit.json").read_text())
    assert account["lost_samples"] == account["doubled_samples"] == 0
    assert account["samples"] == len(list(consumed_samples(job.state / "log")))


def check_machines(job: Job, roles: list[str]) -> None:
    """What every rank multiplies with, counted again in the files of the models."""
    ranks = json.loads((job.result / "measured" / "run.json").read_text())["ranks"]
    assert [each["role"] for each in ranks] == roles and [each["rank"] for each in ranks] == list(
        range(len(roles))
    )
    target = load_file(Path(job.target) / "model.safetensors")
    drafter = weights(job)
    matrices = {name: each.numel() for name, each in drafter.items() if each.ndim == 2}
    context = sum(size for name, size in matrices.items() if re.search(r"^fc\.|\.[kv]_proj\.", name))
    for each in ranks:
        assert (each["device"], each["peak_flops"]) == ("CPU", None)
        assert each["target_weights"] == sum(
            tensor.numel() for name, tensor in target.items() if ".layers." in name and tensor.ndim == 2
        )
        assert each["context_weights"] == context
        assert each["block_weights"] == sum(matrices.values()) - matrices["fc.weight"]
        assert each["head_weights"] == target["model.embed_tokens.weight"].numel()


def check_heldout_samples(job: Job) -> None:
    """Samples add up to the last evaluation, and each is named by its content."""
    samples = pl.read_parquet(job.result / "heldout_samples.parquet")
    last = pl.read_parquet(job.result / "heldout.parquet")[-1]
    assert samples["loss_sum"].sum() / samples["slots"].sum() == pytest.approx(last["loss"].item(), rel=1e-12)
    keys = {f"{int(key):016x}" for key in Shards(job.shards, "validation").keys_N}
    assert samples.height == 4 and samples["sample"].is_sorted() and set(samples["sample"]) <= keys
    assert samples["slots"].min() > 0 and samples["acceptance"].drop_nulls().is_between(1.0, 4.0).all()


@pytest.mark.parametrize("labels", ["data", "target_argmax", "target_distribution"])
def test_one_rank_leaves_everything(world: World, labels: str) -> None:
    job = world.job(
        f"one-{labels}",
        objective={"labels": labels},
        training={"optimizer": "muon", "compute_dtype": "bfloat16"},
    )
    assert train(job) == [0]
    check_account(job)
    metrics = pl.read_parquet(job.result / "metrics.parquet")
    assert metrics["step"].to_list() == list(range(1, 13))
    cells = pl.read_parquet(job.result / "cells.parquet")
    sums = cells.group_by("step", maintain_order=True).agg(
        pl.col("loss_sum").sum() / pl.col("weight").sum(), pl.col("useful_tokens").sum()
    )
    assert sums["loss_sum"].to_list() == pytest.approx(metrics["loss"].to_list())
    assert sums["useful_tokens"].to_list() == metrics["useful_tokens"].to_list()
    assert pl.read_parquet(job.result / "heldout.parquet")["step"].to_list() == [5, 10, 12]
    check_heldout_samples(job)
    check_machines(job, ["both"])
    ranks = pl.read_parquet(job.result / "measured" / "ranks.parquet")
    assert ranks["role"].unique().to_list() == ["both"] and (ranks["busy_seconds"] > 0).all()


def test_colocated_ranks_reach_the_same_weights(
    alone: dict[str, torch.Tensor], two_drafters: dict[str, torch.Tensor]
) -> None:
    for name, value in alone.items():
        torch.testing.assert_close(two_drafters[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("topology", ["targets: 1, drafters: 1", "targets: 2, drafters: 1"])
def test_one_drafter_is_bitwise_the_same_whatever_feeds_it(
    world: World, alone: dict[str, torch.Tensor], topology: str
) -> None:
    # on CPUs packets lie in the machine's memory anyway
    path = "host" if topology.startswith("targets: 2") else "direct"
    job = world.job(topology.replace(": ", ""), topology, runtime={"packet_path": path})
    assert set(train(job)) == {0}
    check_account(job)
    assert all(torch.equal(value, alone[name]) for name, value in weights(job).items())


def test_two_drafters_are_bitwise_the_same_whatever_feeds_them(
    world: World, two_drafters: dict[str, torch.Tensor]
) -> None:
    job = world.job("3-2", "targets: 3, drafters: 2")
    assert set(train(job)) == {0}
    check_account(job)
    check_heldout_samples(job)
    check_machines(job, ["target"] * 3 + ["drafter"] * 2)
    assert all(torch.equal(value, two_drafters[name]) for name, value in weights(job).items())
    roles = (
        pl.read_parquet(job.result / "measured" / "ranks.parquet").group_by("rank", "role").len().sort("rank")
    )
    assert roles["role"].to_list() == ["target"] * 3 + ["drafter"] * 2
