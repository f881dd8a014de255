"""The demo target is made as its card says: from the train split alone, and the same after an interruption."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash.training import pretraining
from dflash.training.pretraining import heldout_figures, pretrain, read_split, write_demo


def corpus(folder: Path) -> Path:
    """Prompts and answers that follow a rule, so that there is something to learn."""
    rng = np.random.default_rng(0)
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for number in range(200):
            first = int(rng.integers(0, 50))
            messages = [
                {"role": "user", "content": f"count {number} from {first}"},
                {"role": "assistant", "content": " ".join(str(first + step) for step in range(20))},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows, and a save after every step."""
    monkeypatch.setattr(pretraining, "ROW_TOKENS", 64)
    monkeypatch.setattr(pretraining, "ROWS_PER_STEP", 2)
    monkeypatch.setattr(pretraining, "SAVE_SECONDS", 0.0)


def run(texts: dict[str, list[str]], state: Path, num_steps: int = 6) -> tuple:
    state.mkdir(exist_ok=True)
    return pretrain(texts, state, num_steps=num_steps, learning_rate=5e-3, seed=0, compiled=False)


def test_an_interrupted_pretraining_ends_with_the_same_weights(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = read_split(corpus(tmp_path), 0.1, 0.1)
    whole, tokenizer, figures = run(texts, tmp_path / "whole")
    step, taken = pretraining._step, []

    def interrupted(*given: object) -> float:
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(1)
        return step(*given)

    monkeypatch.setattr(pretraining, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(texts, tmp_path / "cut")
    monkeypatch.setattr(pretraining, "_step", step)
    again, _, _ = run(texts, tmp_path / "cut")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert figures["steps"] == 6 and figures["train_tokens_seen"] == 6 * 2 * 64
    held = heldout_figures(whole, tokenizer, texts)
    assert 0 < held["heldout_bits_per_byte_5gram"] < 8 and np.isfinite(held["heldout_loss"])
    write_demo(tmp_path / "model", whole, tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    text = AutoTokenizer.from_pretrained(tmp_path / "model").apply_chat_template(
        [{"role": "user", "content": "count"}], tokenize=False, add_generation_prompt=True
    )
    assert loaded.dtype == torch.bfloat16 and text == "<|user|>count<|end|><|assistant|>"


def test_only_the_train_split_is_read(tmp_path: Path, small: None) -> None:
    texts = read_split(corpus(tmp_path), 0.1, 0.1)
    assert min(map(len, texts.values())) > 5 and sum(map(len, texts.values())) == 200
    other = texts | {"validation": ["something else"], "test": []}
    first, second = run(texts, tmp_path / "a", 2)[0], run(other, tmp_path / "b", 2)[0]
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
