"""Decoding in ragged batches gives the text of transformers' own `generate`, for every drafter and temperature."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dflash.evaluation.decoding import Decoded, Limits, decode
from dflash.evaluation.verifier import TargetVerifier

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
GREEDY = Limits(max_new_tokens=20, stop_tokens=frozenset(), temperature=0.0, seed=0)


def build(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    alternating = ["sliding_attention", "full_attention", "sliding_attention"]
    models = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
        "qwen3_windowed": lambda: Qwen3ForCausalLM(
            Qwen3Config(use_sliding_window=True, sliding_window=5, max_window_layers=1, **SHAPE)
        ),
        "mistral_windowed": lambda: MistralForCausalLM(MistralConfig(sliding_window=5, **SHAPE)),
        "gemma3_windowed": lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(sliding_window=5, layer_types=alternating, **SHAPE)
        ),
    }
    model = models[family]().eval()
    # sharper than at birth, so that greedy texts vary
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model


def prompts_of(rng: np.random.Generator, lengths: Sequence[int]) -> list[list[int]]:
    return [rng.integers(0, 50, length).tolist() for length in lengths]


def verifier(model: PreTrainedModel, taps: tuple[int, ...] = ()) -> TargetVerifier:
    return TargetVerifier(model, model.model.layers, taps)


class NoisyOracle:
    """Proposes the known text with errors: acceptance strictly between nothing and everything."""

    def __init__(self, block_size: int, known: dict[tuple[int, ...], list[int]], error: float) -> None:
        self.block_size, self._known, self._error = block_size, known, error
        self._rng = np.random.default_rng(1)
        self.observed: list[tuple[torch.Size, torch.Size]] = []

    def begin(self, num_rows: int, capacity: int) -> None:
        pass

    def keep_rows(self, rows_B: torch.Tensor) -> None:
        pass

    def observe(self, features_BSF: torch.Tensor, positions_BS: torch.Tensor) -> None:
        self.observed.append((features_BSF.shape, positions_BS.shape))

    def draft(self, texts: Sequence[np.ndarray]) -> torch.Tensor:
        rows = []
        for text in texts:
            prompt = next(p for p in self._known if tuple(text[: len(p)]) == p)
            following = self._known[prompt][len(text) - len(prompt) :][: self.block_size - 1]
            row = np.array(following + [0] * (self.block_size - 1 - len(following)))
            wrong = self._rng.random(len(row)) < self._error
            rows.append(np.where(wrong, (row + 1) % 50, row))
        return torch.tensor(np.array(rows))


@pytest.mark.parametrize(
    "family", ["llama", "qwen3", "qwen3_windowed", "mistral_windowed", "gemma3_windowed"]
)
def test_plain_decoding_in_a_ragged_batch_equals_generate(family: str) -> None:
    model = build(family)
    prompts = prompts_of(np.random.default_rng(0), (3, 11, 1, 20, 7))
    got = decode(verifier(model), None, prompts, GREEDY, batch_size=3).decoded
    for prompt, text in zip(prompts, got, strict=True):
        want = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert text.tokens == want[0, len(prompt) :].tolist()
        assert text.steps == [1] * 19


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("block_size", [2, 5, 16])
@pytest.mark.parametrize("family", ["qwen3", "gemma3_windowed"])
def test_speculation_changes_no_token(family: str, block_size: int, temperature: float) -> None:
    model = build(family)
    prompts = prompts_of(np.random.default_rng(2), (4, 9, 2, 15))
    limits = Limits(max_new_tokens=40, stop_tokens=frozenset({7}), temperature=temperature, seed=5)
    plain = decode(verifier(model), None, prompts, limits, batch_size=2).decoded
    known = {tuple(prompt): each.tokens for prompt, each in zip(prompts, plain, strict=True)}
    drafter = NoisyOracle(block_size, known, error=0.25)
    got = decode(verifier(model, (0, 2)), drafter, prompts, limits, batch_size=4).decoded
    assert [each.tokens for each in got] == [each.tokens for each in plain]
    committed = sum(sum(each.steps) for each in got)
    forwards = sum(len(each.steps) for each in got)
    assert 1.2 < committed / forwards < block_size or block_size == 2
    assert {shape[0][-1] for shape in drafter.observed} == {2 * SHAPE["hidden_size"]}


def test_a_stop_token_ends_the_text_and_stands_in_it() -> None:
    model = build("llama")
    prompts = prompts_of(np.random.default_rng(3), (5, 6))
    free = decode(verifier(model), None, prompts, GREEDY, batch_size=2).decoded
    stop = free[0].tokens[6]
    limits = Limits(20, frozenset({stop}), 0.0, 0)
    ended = decode(verifier(model), None, prompts, limits, batch_size=2).decoded
    for whole, cut in zip(free, ended, strict=True):
        end = whole.tokens.index(stop) + 1 if stop in whole.tokens else len(whole.tokens)
        assert cut.tokens == whole.tokens[:end]


def test_steps_account_for_every_token() -> None:
    model = build("llama")
    prompts = prompts_of(np.random.default_rng(4), (5, 6, 7))
    plain = decode(verifier(model), None, prompts, GREEDY, batch_size=3).decoded
    known = {tuple(prompt): each.tokens for prompt, each in zip(prompts, plain, strict=True)}
    got: list[Decoded] = decode(
        verifier(model), NoisyOracle(6, known, 0.1), prompts, GREEDY, batch_size=3
    ).decoded
    for each in got:
        assert 1 + sum(each.steps[:-1]) < len(each.tokens) <= 1 + sum(each.steps)


def test_a_prompt_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt 1 has no token"):
        decode(verifier(build("llama")), None, [[1], []], GREEDY, batch_size=1)


def test_a_target_with_recurrent_layers_is_refused() -> None:
    model = build("qwen3")
    model.config.layer_types = ["linear_attention", "full_attention", "full_attention"]
    with pytest.raises(ValueError, match="layers of type 'linear_attention'"):
        verifier(model)
