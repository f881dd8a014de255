"""The laws of a plan, for every policy: all samples once, never over budget, the same for everybody, new every epoch."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.boundaries import best_boundaries
from dflash.batching.cost import aligned
from dflash.batching.plan import Plan, PlanConfig, load_plan, make_plan, save_plan
from dflash.batching.quality import autocorrelation, step_offsets, variance_share
from dflash.batching.table import epoch_index
from tests.batching.distributions import NAMES, samples

POLICIES = ["bucketed", "pooled", "packed", "sorted", "random"]


def widths_of(lengths: np.ndarray, number: int, alignment: int = 1) -> list[int]:
    widths, counts = np.unique(aligned(lengths, alignment), return_counts=True)
    curve = best_boundaries(widths, counts, widths.astype(float), num_buckets=number)
    return curve.boundaries(number).tolist()


def plan_of(lengths: np.ndarray, policy: str, **changes: object) -> Plan:
    config = PlanConfig(**{"policy": policy, "budget_tokens": 512, "alignment": 1, **changes})
    widths = widths_of(lengths[lengths > 0], 6) if policy == "bucketed" and (lengths > 0).any() else []
    return make_plan(lengths.astype(np.int32), (lengths // 2).astype(np.int32), config, widths)


def batches(plan: Plan, epoch: int) -> list[list[int]]:
    """Sample ids of every micro-batch, by random access."""
    return [
        plan.batch(epoch, step, cell).sample_ids.tolist()
        for step in range(plan.num_steps(epoch))
        for cell in range(plan.num_cells)
    ]


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 300), max_size=120),
    st.sampled_from(POLICIES),
    st.integers(1, 5),
    st.integers(0, 2**40),
)
def test_every_sample_once_and_never_over_budget(
    lengths: list[int], policy: str, cells: int, seed: int
) -> None:
    lengths_N = np.array(lengths, dtype=np.int64)
    plan = plan_of(lengths_N, policy, cells_per_step=cells, seed=seed)
    for epoch in (0, 1):
        seen: list[int] = []
        for step in range(plan.num_steps(epoch)):
            for cell in range(cells):
                batch = plan.batch(epoch, step, cell)
                assert batch.num_rows * batch.width <= 512
                assert batch.row_offsets[-1] == len(batch.sample_ids)
                for row in range(batch.num_rows):
                    inside = batch.sample_ids[batch.row_offsets[row] : batch.row_offsets[row + 1]]
                    assert len(inside) and lengths_N[inside].sum() <= batch.width
                seen += batch.sample_ids.tolist()
        assert sorted(seen) == np.flatnonzero(lengths_N > 0).tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_plan_is_the_same_for_everybody_and_new_for_other_seeds(policy: str, tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 400)
    plan = plan_of(lengths, policy)
    save_plan(plan, tmp_path)
    loaded = load_plan(tmp_path)
    assert loaded.plan_id == plan.plan_id
    # any batch of any epoch from a standing start, in any order
    wanted = batches(plan, 1)
    places = [(step, cell) for step in range(plan.num_steps(1)) for cell in range(plan.num_cells)]
    for place in np.random.default_rng(1).permutation(len(places)).tolist():
        assert loaded.batch(1, *places[place]).sample_ids.tolist() == wanted[place]
    other = plan_of(lengths, policy, seed=7)
    assert other.plan_id != plan.plan_id
    if policy != "sorted":
        assert batches(other, 0) != batches(plan, 0)
        assert {tuple(sorted(each)) for each in batches(plan, 0)} != {
            tuple(sorted(each)) for each in batches(plan, 1)
        }


@pytest.mark.parametrize("policy", POLICIES)
def test_the_table_of_an_epoch_is_its_batches(policy: str) -> None:
    lengths = np.random.default_rng(3).integers(1, 200, 300)
    plan = plan_of(lengths, policy)
    index = epoch_index(plan, 0)
    got = np.split(index.sample_ids_N, index.offsets[1:-1])
    assert [each.tolist() for each in got] == batches(plan, 0)


@pytest.mark.parametrize("name", NAMES)
def test_every_step_mixes_lengths_better_than_a_shuffle_and_without_a_period(name: str) -> None:
    lengths = samples(name, 200_000)
    config = PlanConfig(policy="bucketed", budget_tokens=16_384, alignment=1, cells_per_step=32)
    plan = make_plan(lengths.astype(np.int32), lengths.astype(np.int32), config, widths_of(lengths, 16))
    index = epoch_index(plan, 0)
    offsets = step_offsets(index, 32)
    ordered = lengths[index.sample_ids_N]
    ours = variance_share(ordered, offsets)
    # the same batches, shuffled
    order = np.random.default_rng(1).permutation(len(index.rows))
    sizes = np.diff(index.offsets)[order]
    pieces = np.split(ordered, index.offsets[1:-1])
    shuffled = np.concatenate([pieces[place] for place in order])
    ends = np.concatenate([[0], np.cumsum(sizes)])
    theirs = variance_share(shuffled, np.append(ends[:-1:32], ends[-1]))
    assert ours is not None and theirs is not None
    assert ours <= 0.4 * theirs
    means: list[float] = []
    for epoch in itertools.count():
        if len(means) >= 1000:
            break
        index = epoch_index(plan, epoch)
        # a short last step has another mean
        ordered, offsets = lengths[index.sample_ids_N], step_offsets(index, 32)[: len(index.rows) // 32 + 1]
        means += [float(ordered[a:b].mean()) for a, b in itertools.pairwise(offsets)]
    correlations = autocorrelation(np.array(means))
    assert (np.abs(correlations) > 3 / np.sqrt(len(means))).sum() <= 3


def test_sorted_input_gives_the_statistics_of_shuffled_input() -> None:
    lengths = np.random.default_rng(5).integers(4, 400, 5000)
    one, other = plan_of(lengths, "bucketed"), plan_of(np.sort(lengths), "bucketed")
    assert one.widths == other.widths
    assert one.num_steps(0) == other.num_steps(0)


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [([], 0), ([5], 1), ([7] * 9, 1), ([0, 0], 0)],
)
def test_small_and_empty_data(lengths: list[int], steps: int) -> None:
    for policy in POLICIES:
        plan = plan_of(np.array(lengths, dtype=np.int64), policy, cells_per_step=4)
        assert plan.num_steps(0) == steps


def test_a_place_outside_and_a_sample_over_the_budget_are_named() -> None:
    plan = plan_of(np.array([5, 6]), "bucketed")
    with pytest.raises(ValueError, match="the plan has no epoch 0, step 1, cell 0"):
        plan.batch(0, 1, 0)
    with pytest.raises(
        ValueError, match=r"batching\.budget_tokens is 512, but the longest sample needs a row of 600 tokens"
    ):
        plan_of(np.array([600]), "random")


# Public bug reports as inputs: the budget bounds the rectangle, no sample is lost, long ones wait for nobody.
@pytest.mark.parametrize(
    ("lengths", "budget"),
    [
        ([1, 2, 3, 4, 5], 100),
        ([1, 1, 1, 1, 1, 1, 90, 1], 100),
        ([9, 9, 1, 1, 1, 1], 10),
        ([1, 1, 1, 1, 1, 20], 50),
        ([10] * 15, 10),
        ([7] * 8, 8),
        ([10, 1000] * 20, 1000),
    ],
)
def test_public_bug_inputs(lengths: list[int], budget: int) -> None:
    for policy in POLICIES:
        plan = plan_of(np.array(lengths), policy, budget_tokens=budget)
        got = [
            plan.batch(0, step, cell) for step in range(plan.num_steps(0)) for cell in range(plan.num_cells)
        ]
        assert all(each.num_rows * each.width <= budget for each in got)
        assert sorted(np.concatenate([each.sample_ids for each in got]).tolist()) == list(range(len(lengths)))
