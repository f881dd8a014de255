"""Pretrains the demo target: a small Qwen3-shaped causal model on the train split of the built-in corpus.

About 3.5 million parameters, a BPE of 2,048 of its own and a chat template; bf16 products under fp32 weights, one
cosine, Muon for the matrices. A run of `num_steps` steps of 4,096 tokens; a step takes 0.9 s on two idle cores. It
saves every few minutes and goes on from there.
"""

import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dflash.data.split import SPLIT_NAMES, prompt_bytes, split_of
from dflash.training.ngram import fit_ngrams, ngram_nats

VOCABULARY = 2048
SPECIAL = {
    "pad": "<|pad|>",
    "user": "<|user|>",
    "assistant": "<|assistant|>",
    "end": "<|end|>",
    "mask": "<|mask|>",
}
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role not in ('user', 'assistant') -%}"
    "{{ raise_exception('this template knows the roles user and assistant, not ' + message.role) }}"
    "{%- endif -%}"
    "{{ '<|' + message.role + '|>' }}"
    "{%- if message.role == 'assistant' -%}"
    "{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}"
    "{%- else -%}"
    "{{ message.content + '<|end|>' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
MARKER = re.compile(r"<\|\w+\|>")
ROW_TOKENS = 512
ROWS_PER_STEP = 8
SHORTEST_REST = 64
SAVE_SECONDS = 240.0


def read_split(corpus: Path, validation_share: float, test_share: float) -> dict[str, list[str]]:
    """The corpus as chat texts, by split."""
    texts: dict[str, list[str]] = {name: [] for name in SPLIT_NAMES}
    with corpus.open(encoding="utf-8") as file:
        for line in file:
            messages = json.loads(line)["messages"]
            split = SPLIT_NAMES[split_of(prompt_bytes(messages), validation_share, test_share)]
            texts[split].append("".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages))
    return texts


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `VOCABULARY` tokens, with the chat template and a mask token that no text contains."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL["pad"],
        eos_token=SPECIAL["end"],
        mask_token=SPECIAL["mask"],
        additional_special_tokens=[SPECIAL["user"], SPECIAL["assistant"]],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """8 layers of width 192, 6 query and 2 key heads of 32, tied embeddings."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        initializer_range=0.02,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def rows_of(documents: Sequence[np.ndarray], order: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of `ROW_TOKENS + 1` tokens, each of which begins where a document does.

    Documents follow each other; the rest of one that does not fit begins the next row, unless it is short.
    """
    row: list[np.ndarray] = []
    filled = 0
    for number in order:
        rest = documents[number]
        while len(rest):
            taken = rest[: ROW_TOKENS + 1 - filled]
            row.append(taken)
            filled += len(taken)
            rest = rest[len(taken) :]
            if filled == ROW_TOKENS + 1:
                yield np.concatenate(row)
                row, filled = [], 0
                if len(rest) < SHORTEST_REST:
                    break


def batches(documents: Sequence[np.ndarray], seed: int) -> Iterator[Tensor]:
    """Endless batches int64 [ROWS_PER_STEP, ROW_TOKENS + 1], shuffled anew each epoch."""
    epoch, waiting = 0, list[np.ndarray]()
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(len(documents))
        for row in rows_of(documents, order):
            waiting.append(row)
            if len(waiting) == ROWS_PER_STEP:
                yield torch.from_numpy(np.stack(waiting).astype(np.int64))
                waiting = []
        epoch += 1


def optimizers(model: Qwen3ForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def next_token_loss(model: torch.nn.Module, rows: Tensor) -> Tensor:
    """Mean cross-entropy in nats of int64 rows [B, S + 1]."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


def pretrain(
    texts: dict[str, list[str]],
    state: Path,
    *,
    num_steps: int,
    learning_rate: float,
    seed: int,
    compiled: bool,
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast, dict[str, Any]]:
    """Train the tokenizer and the model; go on from `state` where an earlier call left off.

    Returns:
        The model in float32, the tokenizer, and the figures of the card.
    """
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(texts["train"])
    documents = [np.array(ids, dtype=np.int32) for ids in tokenizer(texts["train"])["input_ids"]]
    model = build_model(tokenizer)
    both = optimizers(model, learning_rate)
    saved = state / "pretraining.pt"
    first, seconds = 0, 0.0
    if saved.exists():
        kept = torch.load(saved, weights_only=True)
        model.load_state_dict(kept["model"])
        for optimizer, content in zip(both, kept["optimizers"], strict=True):
            optimizer.load_state_dict(content)
        first, seconds = kept["step"], kept["seconds"]
    stepped = torch.compile(model) if compiled else model
    stream = batches(documents, seed)
    for _ in range(first):
        next(stream)
    began = last_save = time.monotonic()
    for step in range(first, num_steps):
        loss = _step(stepped, both, next(stream), learning_rate * _schedule(step, num_steps))
        now = time.monotonic()
        if step % 20 == 0:
            rate = (step + 1 - first) * ROWS_PER_STEP * ROW_TOKENS / (now - began)
            print(f"step {step}/{num_steps} loss {loss:.3f} {rate:.0f} tokens/s", flush=True)
        if now - last_save > SAVE_SECONDS or step + 1 == num_steps:
            _save(saved, model, both, step + 1, seconds + now - began)
            last_save = now
    figures = {
        "train_tokens_seen": num_steps * ROWS_PER_STEP * ROW_TOKENS,
        "train_tokens": int(sum(map(len, documents))),
        "train_conversations": len(documents),
        "steps": num_steps,
        "training_seconds": round(seconds + time.monotonic() - began),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    return model, tokenizer, figures


def _schedule(step: int, num_steps: int) -> float:
    """2 % linear warm-up, then one cosine to a fiftieth."""
    warmup = max(1, num_steps // 50)
    if step < warmup:
        return (step + 1) / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (num_steps - warmup)))


def _step(model: Any, both: list[torch.optim.Optimizer], rows: Tensor, rate: float) -> float:
    loss = next_token_loss(model, rows)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in both:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _save(
    path: Path, model: Qwen3ForCausalLM, both: list[torch.optim.Optimizer], step: int, seconds: float
) -> None:
    content = {
        "model": model.state_dict(),
        "optimizers": [o.state_dict() for o in both],
        "step": step,
        "seconds": seconds,
    }
    torch.save(content, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


@torch.inference_mode()
def heldout_figures(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: dict[str, list[str]]
) -> dict[str, float]:
    """Held-out figures of the model and of a 5-gram model trained on the same train split.

    Both predict every token after the first of each validation and test text, chat markers included. Texts longer
    than a training row are read in pieces of that length. Bits are shared out over the UTF-8 bytes between the markers.

    Returns:
        `heldout_loss` in nats a token, and bits per byte of both models.
    """
    vocabulary = len(tokenizer)
    train = [np.array(ids, dtype=np.int32) for ids in tokenizer(texts["train"])["input_ids"]]
    orders = fit_ngrams(train, 5, vocabulary)
    nats = ngram = 0.0
    num_tokens = num_bytes = 0
    for text in texts["validation"] + texts["test"]:
        ids = torch.tensor(tokenizer(text)["input_ids"])
        num_tokens += len(ids) - 1
        num_bytes += len(MARKER.sub("", text).encode())
        ngram += ngram_nats(orders, ids.numpy(), vocabulary)
        for begin in range(0, len(ids) - 1, ROW_TOKENS):
            piece = ids[begin : begin + ROW_TOKENS + 1]
            logits = model(input_ids=piece[None, :-1], use_cache=False).logits[0].float()
            nats += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum").item()
    bits = math.log(2) * num_bytes
    return {
        "heldout_loss": nats / num_tokens,
        "heldout_bits_per_byte": nats / bits,
        "heldout_bits_per_byte_5gram": ngram / bits,
    }


def write_demo(folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write weights in bfloat16, tokenizer and chat template, as transformers reads them."""
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # transformers makes the weights readable by their owner alone
    (folder / "model.safetensors").chmod(0o644)
