"""What may be claimed from a few seeds, on simulated sides, and a planted difference on a whole page."""

import copy
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dflash.report.comparison import (
    Difference,
    Measured,
    common_tokens,
    difference,
    findings,
    pareto,
    value_at,
)
from dflash.report.comparison_page import draw_comparison_page
from dflash.report.sides import (
    Run,
    by_prompt,
    by_sample,
    differing,
    quantities,
    read_experiment,
    same_samples,
    sides_of,
)
from tests.report.world import settings, write_world

PROMPTS = 64


def side(
    rng: np.random.Generator, prompts_P: np.ndarray, shift: float, num_seeds: int = 3
) -> dict[str, Measured]:
    """Three quantities of a side: runs differ by a seed's effect, and each has its own noise on every shared prompt."""
    seed_R = rng.normal(0, 0.05, num_seeds)
    rows = (
        2.5 + shift + seed_R[:, None] + prompts_P[None, :] + rng.normal(0, 0.3, (num_seeds, len(prompts_P)))
    )
    losses = (
        2
        - shift
        + rng.normal(0, 0.02, num_seeds)[:, None]
        - prompts_P
        + rng.normal(0, 0.1, (num_seeds, len(prompts_P)))
    )
    return {
        "acceptance": Measured(rows.mean(axis=1), rows),
        "loss": Measured(losses.mean(axis=1), losses),
        "speed": Measured(3000 * np.exp(rng.normal(0, 0.05, num_seeds))),
    }


def claims(seed: int, shift: float) -> dict[str, str]:
    rng = np.random.default_rng([seed, 7])
    prompts_P = rng.normal(0, 0.6, PROMPTS)
    here, there = side(rng, prompts_P, 0.0), side(rng, prompts_P, shift)
    return findings({name: difference(here[name], there[name]) for name in here}, [3, 3], ["loss"])


def test_no_false_claims_between_equal_sides() -> None:
    false = sum(
        any(said != "no difference shown" for said in claims(seed, 0.0).values()) for seed in range(200)
    )
    assert false <= 0.05 * 200


def test_a_planted_difference_is_found() -> None:
    said = [claims(seed, 0.3) for seed in range(200)]
    assert sum(each["acceptance"] == "better" for each in said) >= 0.9 * 200
    assert sum(each["loss"] == "better" for each in said) >= 0.9 * 200
    assert not any("worse" in (each["acceptance"], each["loss"]) for each in said)


def test_the_interval_covers_the_truth() -> None:
    """Both sources vary from one repetition to the next: new seeds and new prompts."""
    covered = 0
    for seed in range(300):
        rng = np.random.default_rng([seed, 11])
        # Each prompt has its own difference: prompts are a source of variance even for infinitely many seeds.
        own_P = rng.normal(0, 0.4, PROMPTS)
        here = 2.5 + rng.normal(0, 0.05, (3, 1)) + rng.normal(0, 0.2, (3, PROMPTS))
        there = 2.7 + rng.normal(0, 0.05, (3, 1)) + own_P + rng.normal(0, 0.2, (3, PROMPTS))
        got = difference(Measured(here.mean(axis=1), here), Measured(there.mean(axis=1), there))
        covered += got.lower <= 0.2 <= got.upper
    assert covered >= 0.93 * 300


def test_both_sources_enter() -> None:
    same = np.array([1.0, 1.1, 0.9])
    prompts = np.outer(np.ones(3), np.linspace(0, 1, 10))
    apart = prompts * np.array([1, -1] * 5)
    alone = difference(Measured(same), Measured(same))
    joined = difference(Measured(same, prompts), Measured(same, apart))
    assert math.isnan(alone.from_prompts) and joined.from_prompts > 0
    assert joined.upper - joined.lower > alone.upper - alone.lower
    assert alone.from_seeds == pytest.approx(0.1 * math.sqrt(2 / 3))


@pytest.mark.parametrize("counts", [(1, 3), (2, 2), (3, 1)])
def test_fewer_than_three_seeds_claim_nothing(counts: tuple[int, int]) -> None:
    sure = {"loss": Difference(-1.0, -1.1, -0.9, 1e-9, 0.01, 0.01)}
    assert findings(sure, counts, ["loss"]) == {"loss": "these models differ"}


def test_one_run_a_side_has_no_interval() -> None:
    got = difference(Measured(np.array([1.0])), Measured(np.array([2.0])))
    assert got.value == 1.0 and math.isnan(got.lower) and math.isnan(got.probability)


def test_identical_values_differ_in_nothing() -> None:
    got = difference(Measured(np.ones(3)), Measured(np.ones(3)))
    assert (got.value, got.lower, got.upper, got.probability) == (0.0, 0.0, 0.0, 1.0)


def test_claims_are_corrected_for_their_number() -> None:
    one = {"a": Difference(1.0, 0.1, 2.0, 0.03, 0.1, 0.1)}
    assert findings(one, [3, 3], []) == {"a": "better"}
    assert findings(one | {"b": Difference(1.0, -1.0, 2.0, 0.6, 0.1, 0.1)}, [3, 3], []) == {
        "a": "no difference shown",
        "b": "no difference shown",
    }


def test_sides_on_other_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="measured on 4 prompts, the other on 5"):
        difference(Measured(np.ones(2), np.ones((2, 4))), Measured(np.ones(2), np.ones((2, 5))))


def test_curves_are_compared_where_all_have_been() -> None:
    assert common_tokens([np.array([1.0, 5.0]), np.array([2.0, 3.0])]) == 3.0
    assert value_at(np.array([1.0, 5.0]), np.array([10.0, 2.0]), 3.0) == 6.0
    assert math.isnan(value_at(np.array([1.0, 5.0]), np.array([10.0, 2.0]), 0.5))


def test_pareto_keeps_what_nothing_beats() -> None:
    assert pareto([1, 2, 3, 2], [1.0, 2.0, 1.5, 1.9], less_y=False) == [False, True, True, False]
    assert pareto([1, 2, 3], [1.0, 2.0, 1.5], less_y=True) == [True, False, True]
    assert pareto([1, 1], [1.0, 1.0], less_y=True) == [True, True]


def write_sides(root: Path, worse: float, num_seeds: int = 3):
    """Two policies with some seeds each; the second one is worse by so much."""
    all_settings, fits, evaluations = {}, {}, {}
    for number, (policy, shift) in enumerate((("bucketed", 0.0), ("sorted", worse))):
        for seed in range(num_seeds):
            name = f"{policy}-{seed}"
            world = write_world(root / name, seed=seed + 100 * number, worse=shift, steps=48)
            each = copy.deepcopy(settings())
            each["batching"]["policy"], each["training"]["seed"] = policy, seed
            all_settings[name], fits[name], evaluations[name] = (
                each,
                world.stages["fit"],
                world.stages["evaluate"],
            )
    return all_settings, fits, evaluations


def test_sides_differ_in_more_than_seeds(tmp_path: Path) -> None:
    all_settings, fits, evaluations = write_sides(tmp_path, 0.0)
    runs = [read_experiment(name, all_settings[name], fits[name], evaluations[name]) for name in all_settings]
    sides = sides_of(runs)
    assert [(each.name, len(each.runs)) for each in sides] == [("bucketed", 3), ("sorted", 3)]
    assert differing(sides) == [("batching.policy", '"bucketed"', '"sorted"')]


def test_prompts_split_the_pooled_acceptance(tmp_path: Path) -> None:
    all_settings, fits, evaluations = write_sides(tmp_path, 0.0, num_seeds=1)
    name = "bucketed-0"
    run = read_experiment(name, all_settings[name], fits[name], evaluations[name])
    rows = by_prompt([run])
    assert rows is not None and rows.mean() == pytest.approx(run.tokens_P.sum() / run.forwards_P.sum())


def read_runs(written: tuple[dict, dict, dict]) -> list[Run]:
    all_settings, fits, evaluations = written
    return [read_experiment(name, all_settings[name], fits[name], evaluations[name]) for name in all_settings]


def test_samples_split_the_heldout_loss(tmp_path: Path) -> None:
    runs = read_runs(write_sides(tmp_path, 0.0, num_seeds=1))
    rows = by_sample(runs)
    for row, run in zip(rows, runs, strict=True):
        table = pl.read_parquet(tmp_path / run.name / "fit" / "heldout_samples.parquet")
        assert row.mean() == pytest.approx(table["loss_sum"].sum() / table["slots"].sum())


def test_heldout_losses_are_paired_by_sample(tmp_path: Path) -> None:
    """Samples differ by 0.8 nats among themselves, and by 0.02 between runs: what is common to both sides cancels."""
    sides = sides_of(read_runs(write_sides(tmp_path, 0.1)))
    _, measured = quantities(sides)
    here, there = (measured["held-out loss (nats)"][side.name] for side in sides)
    assert here.by_prompt_RP is not None and here.by_prompt_RP.shape == (3, 24)
    assert 0 < difference(here, there).from_prompts < 0.02
    shuffled = Measured(there.values_R, there.by_prompt_RP[:, ::-1])
    assert difference(here, shuffled).from_prompts > 0.1


def test_other_samples_are_not_paired(tmp_path: Path) -> None:
    written = write_sides(tmp_path, 0.1, num_seeds=1)
    path = tmp_path / "sorted-0" / "fit" / "heldout_samples.parquet"
    pl.read_parquet(path).with_columns(sample=pl.col("sample").str.replace("^0", "f")).write_parquet(path)
    runs = read_runs(written)
    assert not same_samples(runs)
    _, measured = quantities(sides_of(runs))
    assert all(each.by_prompt_RP is None for each in measured["held-out loss (nats)"].values())
    assert "evaluated on different samples" in draw_comparison_page(*written, tmp_path / "out").read_text()


def test_the_page_says_what_was_planted(tmp_path: Path) -> None:
    page = draw_comparison_page(*write_sides(tmp_path, 0.4), tmp_path / "out").read_text()
    assert '<td class="text">held-out loss (nats)</td>' in page
    assert page.count(">worse</td>") >= 2 and ">better</td>" not in page
    assert ">these models differ</td>" not in page


def test_the_page_claims_nothing_from_single_runs(tmp_path: Path) -> None:
    page = draw_comparison_page(*write_sides(tmp_path, 0.4, num_seeds=1), tmp_path / "out").read_text()
    assert ">these models differ</td>" in page and ">worse</td>" not in page


def test_a_run_without_heldout_is_named(tmp_path: Path) -> None:
    all_settings, fits, evaluations = write_sides(tmp_path, 0.0, num_seeds=1)
    world = write_world(tmp_path / "short", steps=8)
    with pytest.raises(ValueError, match="training of sorted-0 has no held-out evaluation"):
        draw_comparison_page(
            all_settings, fits | {"sorted-0": world.stages["fit"]}, evaluations, tmp_path / "out"
        )
