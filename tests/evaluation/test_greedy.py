"""Greedy texts are those of plain decoding, for random and for trained drafters; in bfloat16 differences are judged.

The target is a random transformer of 4,096 tokens that speaks only a few of them; one drafter is trained on some of its
texts, so that its proposals are right for a while and then wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from dflash.evaluation import decoding
from dflash.evaluation.decoding import Decoded, Limits, decode
from dflash.evaluation.divergence import BFLOAT16_TOLERANCE, divergences
from dflash.evaluation.drafters import DFlashDrafter
from dflash.evaluation.verifier import TargetVerifier
from dflash.model.anchors import AnchorRules, choose_anchors, supervised_slots
from dflash.model.drafter import Blocks, Drafter, block_tokens
from dflash.model.objective import Objective, micro_batch_loss
from dflash.model.target import Target, wrap_target
from tests.evaluation.rules import Rule, acceptance_length, one_too_many
from tests.model.tiny import tiny_config, tiny_drafter

VOCABULARY, MASK, NEW_TOKENS, NUM_PROMPTS = 4096, 96, 64, 100
TRAINED_TEXTS = 50
SPOKEN = 16
"""Tokens that the target's greedy texts are made of: few, so that a drafter learns some of its habits in seconds."""
BLOCK_SIZES = (2, 4, 16)
GREEDY = Limits(max_new_tokens=NEW_TOKENS, stop_tokens=frozenset(), temperature=0.0, seed=0)


@dataclass
class World:
    """A target, prompts, its plain greedy texts, and drafters of 16 slots by name."""

    target: Target
    prompts: list[list[int]]
    plain: list[Decoded]
    drafters: dict[str, Drafter]


def target_of(dtype: torch.dtype) -> Target:
    """The same random target in any type; its numbers are those of bfloat16, so that types differ in products alone."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        tiny_config("qwen3", vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=5)
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.copy_((0.12 * torch.randn_like(weight)).bfloat16())
        embedding = model.get_input_embeddings().weight
        embedding.copy_((0.2 * torch.randn_like(embedding)).bfloat16())
        turn = torch.linalg.qr(torch.randn(embedding.shape[1], embedding.shape[1])).Q
        head = model.get_output_embeddings().weight
        head.copy_((embedding @ turn).bfloat16())
        head[SPOKEN:] *= 0.0625
    return wrap_target(model.to(dtype).eval(), "tiny")


def served(drafter: Drafter, block_size: int, dtype: torch.dtype = torch.float32) -> Drafter:
    """The same weights with blocks of another size."""
    found = Drafter(replace(drafter.config, block_size=block_size))
    found.load_state_dict(drafter.state_dict())
    return found.to(dtype).eval()


def run(target: Target, drafter: Drafter | None, prompts: Sequence[list[int]]) -> list[Decoded]:
    taps = () if drafter is None else drafter.config.taps
    proposer = None if drafter is None else DFlashDrafter(drafter, target)
    return decode(TargetVerifier(target.model, target.layers, taps), proposer, prompts, GREEDY, 50).decoded


def train(target: Target, drafter: Drafter, texts_BS: torch.Tensor, num_steps: int) -> None:
    """Train on whole texts by the published objective."""
    taps = drafter.config.taps
    with torch.no_grad():
        states = target.model(texts_BS, output_hidden_states=True).hidden_states
    features_BSF = torch.cat([states[tap + 1] for tap in taps], dim=-1)
    rows, width = texts_BS.shape
    masks = np.ones((rows, width), dtype=np.uint8)
    keys, offsets = np.arange(rows, dtype=np.uint64), np.arange(rows + 1)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    for epoch in range(num_steps):
        anchors = choose_anchors(list(masks), keys, offsets, epoch, AnchorRules(1.0, 2, 4096, 0))
        slots = supervised_slots(anchors, masks, drafter.config.block_size)
        places = [torch.from_numpy(each) for each in (anchors.rows_A, anchors.starts_A, anchors.anchors_A)]
        blocks = Blocks(*places)
        tokens_AL = block_tokens(texts_BS[places[0], places[2]], drafter.config.block_size, MASK)
        drafted = drafter.blocks(features_BSF, functional.embedding(tokens_AL, target.embedding_VH), blocks)
        loss = micro_batch_loss(
            drafted, slots, texts_BS, None, target.head, Objective("data", "decay", 7.0, 0.5)
        )
        optimizer.zero_grad()
        (loss.loss_sum / loss.static_weight).backward()
        optimizer.step()


@pytest.fixture(scope="module")
def world() -> World:
    target = target_of(torch.float32)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(100, VOCABULARY, rng.integers(1, 24)).tolist() for _ in range(NUM_PROMPTS)]
    plain = run(target, None, prompts)
    random = tiny_drafter(target, block_size=16)
    trained = tiny_drafter(target, block_size=16)
    trained.initialize(0, target.head.weight_VH)
    width = min(len(prompt) for prompt in prompts) + NEW_TOKENS
    chosen = range(TRAINED_TEXTS)
    texts = [(prompts[number] + plain[number].tokens)[-width:] for number in chosen]
    train(target, trained, torch.tensor(texts), 60)
    return World(target, prompts, plain, {"random": random, "trained": trained})


@pytest.mark.parametrize(
    "block_size",
    [pytest.param(size, marks=[] if size in BLOCK_SIZES else [pytest.mark.full]) for size in range(2, 17)],
)
@pytest.mark.parametrize("kind", ["random", "trained"])
def test_greedy_texts_are_those_of_plain_decoding(world: World, kind: str, block_size: int) -> None:
    got = run(world.target, served(world.drafters[kind], block_size), world.prompts)
    assert [each.tokens for each in got] == [each.tokens for each in world.plain]
    assert all(len(each.tokens) == NEW_TOKENS for each in got)
    if kind == "trained":
        assert 1.2 < acceptance_length(got) < block_size


@pytest.mark.parametrize("rule", [None, one_too_many])
def test_bfloat16_divergences_are_counted_and_explained_by_rounding(
    world: World, rule: Rule | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(torch.bfloat16)
    plain = run(target, None, world.prompts)
    if rule is not None:
        monkeypatch.setattr(decoding, "accept", rule)
    got = run(target, served(world.drafters["trained"], 8, torch.bfloat16), world.prompts)
    texts = [[each.tokens for each in side] for side in (plain, got)]
    found = divergences(world.target.model, world.prompts, *texts, BFLOAT16_TOLERANCE)
    assert len(found) == sum(left != right for left, right in zip(*texts, strict=True)) > 0
    assert any(each.is_error for each in found) == (rule is not None)
