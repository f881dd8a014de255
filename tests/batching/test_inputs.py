"""Inputs of every kind, each with the exact behaviour that a user can rely on, and reports of public bugs as inputs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dflash.batching.alternatives import padding_efficiency
from dflash.batching.batch import Batch
from dflash.batching.boundaries import best_boundaries
from dflash.batching.choose import Choice, choose_boundaries
from dflash.batching.cost import Limits, Price
from dflash.batching.describe import describe_plan
from dflash.batching.description import check_same_plan
from dflash.batching.histogram import check_counts, measure
from dflash.batching.plan import Plan, PlanConfig, load_plan, make_plan, save_plan
from dflash.batching.quality import autocorrelation
from dflash.batching.table import epoch_index, epoch_table
from tests.batching.distributions import samples

POLICIES = ["bucketed", "pooled", "packed", "sorted", "random"]


def boundaries(lengths: np.ndarray, budget: int = 512, **changes: object) -> dict[str, object]:
    distinct, counts = np.unique(lengths, return_counts=True)
    choice = Choice(**{"price": Price(Limits(budget)), "alignment": 1, **changes})  # type: ignore[arg-type]
    return choose_boundaries(distinct, counts, choice)


def plan_of(lengths: list[int] | np.ndarray, policy: str = "bucketed", **changes: object) -> Plan:
    lengths_N = np.array(lengths, np.int32)
    config = PlanConfig(**{"policy": policy, "budget_tokens": 512, "alignment": 1, **changes})  # type: ignore[arg-type]
    widths = (
        boundaries(lengths_N, config.budget_tokens, zero_length=config.zero_length)["widths"]
        if policy == "bucketed"
        else None
    )
    return make_plan(lengths_N, lengths_N, config, widths)  # type: ignore[arg-type]


def cells(plan: Plan, epoch: int = 0) -> Iterator[Batch]:
    for step in range(plan.num_steps(epoch)):
        for cell in range(plan.num_cells):
            yield plan.batch(epoch, step, cell)


def delivered(plan: Plan, epoch: int = 0) -> list[int]:
    return sorted(int(each) for batch in cells(plan, epoch) for each in batch.sample_ids)


def figures(plan: Plan, lengths: list[int]) -> dict[str, object]:
    lengths_N = np.array(lengths, np.int32)
    return describe_plan(plan, lengths_N, np.zeros_like(lengths_N), 1, 1 << 62)[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_data_set_is_a_plan_of_nothing(policy: str) -> None:
    plan = plan_of([], policy)
    assert plan.num_steps(0) == 0
    got = figures(plan, [])
    assert got["padding_efficiency"] is None and got["coverage"] is None
    with pytest.raises(ValueError, match="no epoch 0, step 0"):
        plan.batch(0, 0, 0)
    assert boundaries(np.zeros(0, np.int64))["notes"] == ["the data set is empty"]


@pytest.mark.parametrize("policy", POLICIES)
def test_one_sample_makes_one_step_of_one_real_cell(policy: str) -> None:
    plan = plan_of([7], policy, cells_per_step=8)
    assert plan.num_steps(0) == 1
    assert sorted(batch.num_rows for batch in cells(plan)) == [0] * 7 + [1]
    assert figures(plan, [7])["coverage"] == 1.0


def test_equal_lengths_make_one_bucket_without_padding() -> None:
    got = boundaries(np.full(1000, 37), num_buckets=8)
    assert got["widths"] == [37] and got["efficiency"] == 1.0
    assert got["notes"] == ["num_buckets is 8, but 1 distinct widths are all there are"]
    assert figures(plan_of([37] * 100), [37] * 100)["padding_efficiency"] == 1.0


@pytest.mark.parametrize("policy", POLICIES)
def test_empty_samples_are_dropped_and_counted_or_kept(policy: str) -> None:
    lengths = [0, 5, 0, 9]
    dropped = plan_of(lengths, policy)
    assert delivered(dropped) == [1, 3] and dropped.description.num_dropped == 2
    kept = plan_of(lengths, policy, zero_length="keep")
    assert delivered(kept) == [0, 1, 2, 3] and kept.description.num_dropped == 0
    assert all(batch.width >= 1 for batch in cells(kept) if batch.num_rows)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pl.Series([3, None, 2, None]), r"lengths: 2 values are null, first in rows \[1, 3\]"),
        (pl.Series([3, -1]), r"1 values are negative, first in rows \[1\]"),
        (pl.Series([3.0, float("nan")]), r"1 values are NaN or infinite, first in rows \[1\]"),
        (pl.Series([2.5]), r"1 values are fractional, first in rows \[0\]"),
        (pl.Series([1, 2**31]), r"1 values are above 2147483647, first in rows \[1\]"),
        (pl.Series(["3"]), "type String is not a number of tokens"),
        (pl.Series([None] * 8), r"lengths: type Null is not a number"),
    ],
)
def test_lengths_that_are_none(values: pl.Series, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_counts(values, "lengths")


def test_a_bad_length_in_a_shard_is_named_with_file_and_column(tmp_path: Path) -> None:
    pl.DataFrame({"length": [4, None], "supervised": [1, 1], "split": [0, 0]}).write_ipc(tmp_path / "a.arrow")
    with pytest.raises(
        ValueError, match=r"a\.arrow, column 'length': 1 values are null, first in rows \[1\]"
    ):
        measure({"chats": [tmp_path / "a.arrow"]})


@pytest.mark.parametrize("name", ["len", "count", "samples", "length"])
def test_a_source_may_be_named_like_a_column(name: str, tmp_path: Path) -> None:
    pl.DataFrame({"length": [4, 4, 7], "supervised": [1, 1, 1], "split": [0, 0, 0]}).write_ipc(
        tmp_path / "a.arrow"
    )
    histogram, lengths = measure({name: [tmp_path / "a.arrow"]})
    assert histogram["samples"].to_list() == [2, 1] and lengths["length"].to_list() == [4, 4, 7]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_sample_above_the_budget_runs_alone_where_memory_allows_it(policy: str) -> None:
    lengths = [10] * 20 + [900]
    with pytest.raises(
        ValueError, match=r"the longest sample needs a row of 900 tokens; raise batching\.budget_tokens"
    ):
        make_plan(
            np.array(lengths, np.int32),
            np.zeros(21, np.int32),
            PlanConfig(policy, budget_tokens=512, alignment=1),
            [10, 900],
        )
    config = PlanConfig(policy, budget_tokens=512, memory_tokens=1024, alignment=1)
    plan = make_plan(np.array(lengths, np.int32), np.zeros(21, np.int32), config, [10, 900])
    assert delivered(plan) == list(range(21))
    if policy != "packed":
        (alone,) = [batch for batch in cells(plan) if 20 in batch.sample_ids]
        assert alone.num_rows == 1
    with pytest.raises(ValueError, match=r"raise batching\.memory_tokens to at least 2000"):
        make_plan(np.array([2000], np.int32), np.zeros(1, np.int32), config, [2000])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("number", [1, 2, 3, 5, 7])
def test_fewer_samples_than_buckets_ranks_or_cells(policy: str, number: int) -> None:
    lengths = [3 * each + 1 for each in range(number)]
    plan = plan_of(lengths, policy, cells_per_step=8)
    assert delivered(plan) == list(range(number)) and plan.num_steps(0) == 1
    # `packed` may lay them all in one row; elsewhere as many cells work as there are samples
    if policy != "packed":
        assert sum(batch.num_rows > 0 for batch in cells(plan)) == number


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="3 lengths but 2 supervised counts"):
        make_plan(np.ones(3, np.int32), np.ones(2, np.int32), PlanConfig(), [8])


def test_one_bucket_and_a_budget_below_the_shortest() -> None:
    lengths = samples("stdlib", 500)
    assert len(boundaries(lengths, 8192, num_buckets=1)["widths"]) == 1  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the longest sample needs a row of 50 tokens"):
        plan_of([50, 50], budget_tokens=40)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([8, 8, 16], "must be positive and increasing"),
        ([16, 8], "must be positive and increasing"),
        ([0, 16], "must be positive and increasing"),
        ([4, 8], r"the longest sample has 9 tokens; let the last bound be at least 9"),
    ],
)
def test_given_boundaries_are_checked(given: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        boundaries(np.array([3, 9]), boundaries=given)
    assert boundaries(np.array([3, 9]), boundaries=[4, 16])["widths"] == [4, 16]


def test_another_plan_is_not_resumed_and_the_field_is_named() -> None:
    one, other = plan_of([5, 6, 7], seed=0), plan_of([5, 6, 7], seed=1)
    with pytest.raises(ValueError, match="seed"):
        check_same_plan(_described(one), _described(other))
    check_same_plan(_described(one), _described(plan_of([5, 6, 7], seed=0)))


def _described(plan: Plan) -> dict[str, object]:
    from dataclasses import asdict

    return {"plan_id": plan.plan_id, **asdict(plan.description)}


def test_an_edited_plan_file_is_refused(tmp_path: Path) -> None:
    save_plan(plan_of([5, 6, 7]), tmp_path)
    assert delivered(load_plan(tmp_path)) == [0, 1, 2]
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ValueError, match=r"plan\.json was edited"):
        load_plan(tmp_path)
    (tmp_path / "plan.json").write_text(text)
    (tmp_path / "order.u32").write_bytes(b"\0" * 8)
    with pytest.raises(ValueError, match=r"order\.u32 has 8 bytes, the plan needs 12"):
        load_plan(tmp_path)


# Reports of public bugs, by what went wrong there.


def test_two_thousand_samples_are_planned_at_once_and_within_the_rectangle() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 2000)
    for policy in POLICIES:
        plan = plan_of(lengths, policy, budget_tokens=100)
        assert all(batch.num_rows * batch.width <= 100 for batch in cells(plan))
        assert delivered(plan) == list(range(2000))


@pytest.mark.parametrize("policy", ["bucketed", "pooled", "packed", "random"])
def test_order_and_membership_change_with_epoch_and_seed_and_are_reproducible(policy: str) -> None:
    lengths = samples("lognormal", 3000)

    def content(seed: int, epoch: int) -> tuple[list[int], set[frozenset[int]]]:
        plan = plan_of(lengths, policy, seed=seed, budget_tokens=16_384)
        batches = [batch for batch in cells(plan, epoch) if batch.num_rows]
        return [batch.width for batch in batches], {frozenset(batch.sample_ids.tolist()) for batch in batches}

    first, again, epoch, seed = content(0, 0), content(0, 0), content(0, 1), content(1, 0)
    assert first == again
    for other in (epoch, seed):
        if policy != "packed":
            assert first[0] != other[0]
        assert len(first[1] & other[1]) <= 0.05 * len(first[1])


def test_the_loss_of_a_bucketed_plan_cannot_saw_with_the_length() -> None:
    lengths = np.clip(np.exp(np.random.default_rng(0).normal(6.2, 1.1, 50_000)), 4, 8192).astype(np.int32)
    plan = plan_of(lengths, budget_tokens=8192, cells_per_step=16)
    index = epoch_index(plan, 0)
    ordered = lengths[index.sample_ids_N]
    means = [float(each.mean()) for each in np.split(ordered, index.offsets[16:-1:16]) if len(each)]
    assert np.abs(autocorrelation(np.array(means[:-1]))).max() < 4.5 / np.sqrt(len(means))


def test_the_largest_rectangle_is_known_at_plan_time() -> None:
    lengths = [100] * 1000 + [8192]
    plan = plan_of(lengths, budget_tokens=16_384)
    got = figures(plan, lengths)
    widest = max(batch.num_rows * batch.width for batch in cells(plan))
    assert got["largest_micro_batch_tokens"] == widest <= 16_384


def test_alternating_lengths_are_grouped_without_asking() -> None:
    lengths = [10, 1000] * 500
    assert figures(plan_of(lengths, budget_tokens=4000), lengths)["padding_efficiency"] >= 0.99  # type: ignore[operator]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("lengths", "budget", "num_cells"),
    [
        ([10] * 5 + [1, 2, 3], 30, 2),
        ([10] * 15, 10, 8),
        ([100] * 900, 200, 200),
        ([9] * 3, 10, 5),
        ([9] * 7, 10, 5),
        ([4000] * 2 + [2] * 1000, 4000, 8),
        ([3, 1, 2, 4], 4, 2),
        ([7] * 8, 8, 2),
    ],
)
def test_tails_are_never_dropped_and_every_rank_sees_as_many_cells(
    policy: str, lengths: list[int], budget: int, num_cells: int
) -> None:
    plan = plan_of(lengths, policy, budget_tokens=budget, cells_per_step=num_cells)
    for epoch in range(2):
        assert delivered(plan, epoch) == list(range(len(lengths)))
        assert all(batch.num_rows * batch.width <= budget for batch in cells(plan, epoch))
        assert sum(1 for _ in cells(plan, epoch)) == plan.num_steps(epoch) * num_cells
    table = epoch_table(epoch_index(plan, 0), np.array(lengths), np.zeros(len(lengths), np.int32), num_cells)
    assert table["step"].n_unique() == plan.num_steps(0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_saved_at_the_end_of_an_epoch_goes_on_in_a_whole_one(policy: str) -> None:
    plan = plan_of([5] * 6, policy, budget_tokens=15, cells_per_step=1)
    assert delivered(plan, 1) == list(range(6))
    with pytest.raises(ValueError, match=f"epoch 0 has {plan.num_steps(0)} steps"):
        plan.batch(0, plan.num_steps(0), 0)


def test_any_capacity_packs_and_none_at_all_is_no_error() -> None:
    for budget in (8192, 8193):
        plan = plan_of([2000] * 100, "packed", budget_tokens=budget, cells_per_step=1)
        assert plan.num_steps(0) == 25
    assert plan_of([0, 0], "packed").num_steps(0) == 0


def test_samples_above_half_the_capacity_are_packed_in_linear_time() -> None:
    plan = plan_of(np.full(100_000, 300), "packed", budget_tokens=512, cells_per_step=64)
    assert plan.policy.num_batches(0) == 100_000


def test_the_number_of_shapes_is_known_before_the_run() -> None:
    plan = plan_of(samples("lognormal", 20_000), budget_tokens=16_384)
    assert {batch.width for batch in cells(plan)} <= set(plan.widths)
    assert figures(plan, samples("lognormal", 20_000).tolist())["shapes"] <= len(plan.widths)  # type: ignore[operator]


def test_no_cell_gets_the_longest_samples_again_and_again() -> None:
    plan = plan_of(samples("lognormal", 40_000), budget_tokens=16_384, cells_per_step=8)
    widest = [
        int(np.argmax([plan.batch(0, step, cell).width for cell in range(8)]))
        for step in range(plan.num_steps(0) - 1)
    ]
    # An eighth each by chance, within five standard errors.
    share = np.bincount(widest, minlength=8) / len(widest)
    assert np.abs(share - 1 / 8).max() < 5 * np.sqrt(7 / 64 / len(widest))


def test_heavy_tails_are_solved_exactly_in_no_time() -> None:
    widths, counts = np.unique(samples("stdlib", 50_000), return_counts=True)
    curve = best_boundaries(widths, counts, widths.astype(float), num_buckets=8)
    useful = int((widths * counts).sum())
    quantiles = np.unique(np.quantile(np.repeat(widths, counts), np.arange(1, 9) / 8, method="higher"))
    ours = padding_efficiency(widths, counts, useful, curve.boundaries(8))
    theirs = padding_efficiency(widths, counts, useful, quantiles.astype(np.int64))
    assert ours is not None and theirs is not None and ours > 3 * theirs
