"""Acceptance length counts what its definition says, and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.evaluation.acceptance import by_position, counted, first_repeat, pooled


def test_first_repeat_ends_inside_the_repeated_ngram() -> None:
    loop = [*list(range(10)), 1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert first_repeat(loop) == 17
    assert first_repeat(loop[:17]) == 17
    assert first_repeat(list(range(30))) == 30
    # overlapping repetition: a run of one token repeats its 8-gram at the ninth
    assert first_repeat([7] * 20) == 8
    assert first_repeat([]) == 0


@given(st.lists(st.integers(0, 1), max_size=60), st.integers(1, 5))
def test_first_repeat_equals_a_search_by_slices(tokens: list[int], ngram: int) -> None:
    text = "".join(map(str, tokens))
    ends = [end for end in range(ngram, len(text) + 1) if text.find(text[end - ngram : end]) < end - ngram]
    assert first_repeat(tokens, ngram) == (min(ends) - 1 if ends else len(tokens))


def test_a_step_over_the_end_counts_for_its_share() -> None:
    # the text: 1 prefill token, then 4 + 4 + 2 tokens
    assert counted([4, 4, 2], 11) == (10, 3.0)
    assert counted([4, 4, 2], 7) == (6, 1.5)
    assert counted([4, 4, 2], 1) == (0, 0.0)
    assert counted([], 5) == (0, 0.0)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=20), st.integers(1, 60))
def test_counting_is_a_walk_token_by_token(steps: list[int], end: int) -> None:
    tokens, forwards, place = 0, 0.0, 1
    for step in steps:
        for _ in range(step):
            if place < end:
                tokens += 1
                forwards += 1 / step
            place += 1
    got = counted(steps, end)
    assert got[0] == tokens
    assert got[1] == pytest.approx(forwards)


def test_pooled_is_a_ratio_of_sums_with_an_interval_around_it() -> None:
    rng = np.random.default_rng(0)
    steps = [rng.integers(1, 8, 30).tolist() for _ in range(50)]
    ends = [1 + sum(each) for each in steps]
    got = pooled(steps, ends, seed=0)
    assert got.length == pytest.approx(sum(map(sum, steps)) / (50 * 30))
    assert got.lower < got.length < got.upper
    assert got.upper - got.lower < 0.4
    assert got.counted_share == 1
    half = pooled(steps, [1 + sum(each) // 2 for each in steps], seed=0)
    assert half.counted_share == pytest.approx(0.5, abs=0.01)
    assert half.length == pytest.approx(got.length, abs=0.3)


def test_nothing_counted_is_unknown_not_zero() -> None:
    assert np.isnan(pooled([[]], [1], seed=0).length)


def test_every_prompt_needs_its_end() -> None:
    with pytest.raises(ValueError, match="1 prompts but 2 ends"):
        pooled([[1]], [1, 2], seed=0)


def test_by_position() -> None:
    whole, conditional = by_position([[1, 2, 4], [4]], 4)
    np.testing.assert_allclose(whole, [3 / 4, 2 / 4, 2 / 4])
    np.testing.assert_allclose(conditional, [3 / 4, 2 / 3, 1.0])
    whole, conditional = by_position([[1]], 4)
    np.testing.assert_allclose(whole, [0, 0, 0])
    assert np.isnan(conditional[1:]).all()
