"""Sampled speculation follows the target's distribution; lossy rules of acceptance, planted in the decoder, do not."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from dflash.evaluation import decoding
from dflash.evaluation.decoding import Limits, decode
from dflash.evaluation.verifier import TargetVerifier
from tests.evaluation.rules import Rule, acceptance_length, one_too_many, too_tolerant


class Constant:
    """Proposes the next token of the ring of four, then a 2: right now and then."""

    block_size = 3

    def begin(self, num_rows: int, capacity: int) -> None: ...

    def keep_rows(self, rows_B: torch.Tensor) -> None: ...

    def observe(self, features_BSF: torch.Tensor, positions_BS: torch.Tensor) -> None: ...

    def draft(self, texts: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.tensor([[(int(text[-1]) + 1) % 4, 2] for text in texts])


@pytest.fixture(scope="module")
def small() -> PreTrainedModel:
    torch.manual_seed(0)
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=4, hidden_size=16, intermediate_size=64, num_hidden_layers=1, **shape)
    )
    for parameter in model.parameters():
        parameter.data.mul_(2.5)
    return model.eval()


@pytest.mark.parametrize(
    "samples", [20_000, pytest.param(200_000, marks=pytest.mark.full)], ids=["20k", "200k"]
)
@pytest.mark.parametrize("rule", [None, too_tolerant, one_too_many])
def test_sampling_follows_the_targets_distribution_and_lossy_rules_do_not(
    small: PreTrainedModel, rule: Rule | None, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi-square on the joint of the first three tokens against the target's own probabilities, a fixed seed."""
    if rule is not None:
        monkeypatch.setattr(decoding, "accept", rule)
    prompt, limits = [1, 2], Limits(3, frozenset(), 1.0, 11)
    verifier = TargetVerifier(small, small.model.layers, ())
    got = decode(verifier, Constant(), [prompt] * samples, limits, 20_000).decoded
    assert 1.1 < acceptance_length(got) < 2.9
    expected_64 = samples * np.array([probability for _, probability in texts_of(small, prompt)])
    assert expected_64.min() > 5
    codes = np.array([each.tokens[:3] for each in got]) @ np.array([16, 4, 1])
    counts_64 = np.bincount(codes, minlength=64)
    statistic = float(((counts_64 - expected_64) ** 2 / expected_64).sum())
    # 63 degrees of freedom: mean 63, standard deviation sqrt(126)
    assert (statistic < 63 + 5 * np.sqrt(126)) == (rule is None)


def texts_of(model: PreTrainedModel, prompt: list[int]) -> Iterator[tuple[list[int], float]]:
    """All texts of three tokens, in the order of their codes, and their probabilities."""
    for code in range(64):
        text = [code // 16, code // 4 % 4, code % 4]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + text])).logits[0].double().log_softmax(-1)
        places = range(len(prompt) - 1, len(prompt) + 2)
        yield text, float(sum(logits[place, token] for place, token in zip(places, text, strict=True)).exp())
