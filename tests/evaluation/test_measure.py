"""The evaluation's tables, its prompts, and how a difference of texts is judged."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.data.shards import Sample, Shards, write_shard
from dflash.evaluation.acceptance import first_repeat
from dflash.evaluation.decoding import Decoded, Timed
from dflash.evaluation.divergence import divergences
from dflash.evaluation.drafters import PromptLookup
from dflash.evaluation.heldout import heldout_prompts
from dflash.evaluation.measure import (
    CUT,
    WHOLE,
    Measured,
    Prompts,
    acceptance_rows,
    decode_rows,
    position_rows,
    speed_rows,
)
from tests.evaluation.test_decoding import build

LOOP = [1, 2, 3, 4, 5, 6, 7, 8, 9] * 3


def measured() -> tuple[Measured, Prompts]:
    texts = [Decoded(LOOP, [4, 4, 4, 4, 4, 4, 4]), Decoded(list(range(20)), [1] * 19)]
    plain = [Decoded(each.tokens, [1] * (len(each.tokens) - 1)) for each in texts]
    return Measured({0.0: Timed(plain, 4.0)}, {("dflash", 0.0): Timed(texts, 2.0)}), Prompts(
        [[1], [2]], ["a", "b"]
    )


def test_greedy_acceptance_is_counted_whole_and_up_to_the_first_loop() -> None:
    rows = acceptance_rows(*measured(), seed=0)
    found = {(row["prompt_set"], row["definition"]): row for row in rows}
    assert len(rows) == 4
    # 26 tokens after the prefill's, in steps of 4; the last step goes 2 over the end
    assert found["a", WHOLE]["value"] == pytest.approx(26 / 6.5)
    assert found["a", CUT]["num_tokens"] == first_repeat(LOOP) - 1 == 15
    assert found["a", CUT]["counted_share"] == pytest.approx(15 / 28)
    assert found["b", WHOLE]["value"] == found["b", CUT]["value"] == 1


def test_positions_speed_and_decodes() -> None:
    made, prompts = measured()
    positions = position_rows(made, prompts, {"dflash": 5})
    assert [row["share"] for row in positions if row["prompt_set"] == "a"] == [1, 1, 1, 0]
    assert speed_rows(made)[0]["speed_up"] == 2
    assert speed_rows(made)[0]["tokens_per_second"] == pytest.approx((27 + 20) / 2)
    rows = decode_rows(
        made.plain[0.0].decoded,
        made.speculative["dflash", 0.0].decoded,
        prompts,
        lambda ids: " ".join(map(str, ids)),
    )
    assert rows[0]["identical"]
    assert sum(rows[0]["runs"]) == len(LOOP)
    assert " ".join(rows[0]["pieces"]) == rows[0]["text"]


def test_prompts_are_the_first_by_key_without_answers(tmp_path: Path) -> None:
    samples = [
        Sample(np.array([number, 50, 51], np.int32), np.array([0, 1, 1], np.uint8), 2, 100 - number, number)
        for number in range(1, 9)
    ]
    samples.append(Sample(np.array([7, 7], np.int32), np.array([1, 1], np.uint8), 2, 0, 99))
    write_shard(tmp_path / "a.arrow", iter(samples), {})
    shards = {"chats": Shards([tmp_path / "a.arrow"], "test")}
    # the one of key 0 has no prompt at all
    assert heldout_prompts(shards, 3, 10) == Prompts([[8], [7], [6]], ["chats"] * 3)
    with pytest.raises(ValueError, match="the test split has 9 samples and no prompt of at most 0 tokens"):
        heldout_prompts(shards, 3, 0)


def test_only_a_clear_preference_makes_a_difference_an_error() -> None:
    model = build("llama")
    prompt = [3, 4, 5]
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1].float()
    best, second = logits.topk(2).indices.tolist()
    gap = float(logits[best] - logits[second])
    for tolerance, is_error in ((gap * 1.01, False), (gap * 0.99, True)):
        (found,) = divergences(model, [prompt, prompt], [[best], [best]], [[second], [best]], tolerance)
        assert (found.prompt, found.place, found.is_error) == (0, 0, is_error)
        assert found.gap == pytest.approx(gap, rel=1e-4)


def test_prompt_lookup_proposes_for_every_row() -> None:
    drafter = PromptLookup(4, torch.device("cpu"))
    texts = [np.array([1, 2, 3, 1, 2]), np.array([9])]
    assert drafter.draft(texts).tolist() == [[3, 1, 2], [9, 9, 9]]
