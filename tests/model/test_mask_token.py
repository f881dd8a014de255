"""The token that fills undrafted slots."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dflash.model.mask_token import choose_mask_token


def tokenizer(vocabulary: list[str], **own: int) -> Any:
    ids = {text: number for number, text in enumerate(vocabulary)}
    return SimpleNamespace(
        get_vocab=lambda: ids, **{f"{name}_token_id": own.get(name) for name in ("mask", "bos", "eos", "pad")}
    )


WORDS = ["a", "b", "<|end|>"]


def test_the_first_spare_row_as_in_the_published_drafters() -> None:
    assert choose_mask_token(tokenizer(WORDS, eos=2), torch.zeros(5, 4), None) == 3


def test_the_tokenizers_own_comes_first() -> None:
    assert choose_mask_token(tokenizer([*WORDS, "<mask>"], eos=2, mask=3), torch.zeros(6, 4), None) == 3


def test_a_spare_token_where_no_row_is_spare() -> None:
    assert (
        choose_mask_token(
            tokenizer(["<|reserved_special_token_0|>", "a", "<unused7>"]), torch.zeros(3, 4), None
        )
        == 0
    )
    assert (
        choose_mask_token(
            tokenizer(["<|reserved_special_token_0|>", "a", "<unused7>"], eos=0), torch.zeros(3, 4), None
        )
        == 2
    )


def test_rows_that_are_not_finite_are_passed_over() -> None:
    embedding = torch.zeros(6, 4)
    embedding[3, 1] = float("nan")
    assert choose_mask_token(tokenizer(WORDS), embedding, None) == 4
    with pytest.raises(
        ValueError, match="drafter.mask_token_id is 3, whose row in the target's embedding is not finite"
    ):
        choose_mask_token(tokenizer(WORDS), embedding, 3)


def test_the_users_wish() -> None:
    assert choose_mask_token(tokenizer(WORDS), torch.zeros(5, 4), 1) == 1
    with pytest.raises(ValueError, match="drafter.mask_token_id is 9, but the target's embedding has 5 rows"):
        choose_mask_token(tokenizer(WORDS), torch.zeros(5, 4), 9)


def test_no_token_to_spare() -> None:
    with pytest.raises(
        ValueError, match="no mask token and no unused token in its vocabulary; set drafter.mask_token_id"
    ):
        choose_mask_token(tokenizer(WORDS), torch.zeros(3, 4), None)
