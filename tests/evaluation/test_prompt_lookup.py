"""The lookup baseline proposes what followed the last tokens before."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash.evaluation.prompt_lookup import look_up


def test_the_longest_and_latest_match_wins() -> None:
    text = np.array([1, 2, 3, 9, 9, 2, 3, 8, 7, 1, 2, 3])
    assert look_up(text, 3).tolist() == [9, 9, 2]
    later = np.array([2, 3, 5, 4, 2, 3, 8, 7, 6, 2, 3])
    assert look_up(later, 2).tolist() == [8, 7]


def test_a_proposal_may_run_on_into_itself() -> None:
    assert look_up(np.array([4, 5, 4, 5]), 5).tolist() == [4, 5, 4, 5, 4]


def test_without_a_match_the_last_token_is_repeated() -> None:
    assert look_up(np.array([1, 2, 3]), 2).tolist() == [3, 3]
    assert look_up(np.array([6]), 2).tolist() == [6, 6]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8))
def test_against_a_search_from_the_end(tokens: list[int], number: int) -> None:
    want = [tokens[-1]] * number
    for length in (3, 2, 1):
        starts = [p for p in range(len(tokens) - length) if tokens[p : p + length] == tokens[-length:]]
        if len(tokens) > length and starts:
            grown = list(tokens)
            for offset in range(number):
                grown.append(grown[starts[-1] + length + offset])
            want = grown[len(tokens) :]
            break
    assert look_up(np.array(tokens), number).tolist() == want
