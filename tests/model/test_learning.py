"""What training must not and must reach: nothing on noise, everything on one text.

The features are the tokens' own embeddings, which the head projects back: the easiest thing in the world to copy, so a
drafter that sees what it predicts shows it within 200 steps.
"""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from dflash.model.anchors import AnchorRules, choose_anchors, supervised_slots
from dflash.model.drafter import Blocks, block_tokens
from dflash.model.objective import Head, MicroBatchLoss, Objective, acceptance, micro_batch_loss
from tests.model.tiny import tiny_drafter, tiny_target

BLOCK, VOCABULARY = 4, 16
OBJECTIVE = Objective("data", "uniform", 4.0, 0.5)
CHANCE = math.log(VOCABULARY)


class World:
    """A drafter and rows of random documents. `leak`: places after the anchor that are shown to its block by mistake."""

    def __init__(self, num_anchors: int, leak: int = 0) -> None:
        target = tiny_target(vocab_size=VOCABULARY + 1)
        self.embedding_VH = torch.randn(VOCABULARY + 1, 32, generator=torch.Generator().manual_seed(5))
        self.head = Head(self.embedding_VH)
        self.drafter = tiny_drafter(target, block_size=BLOCK, num_layers=1, taps=(1,))
        self.drafter.initialize(0, self.embedding_VH)
        self.optimizer = torch.optim.AdamW(self.drafter.parameters(), lr=1e-2)
        self.rules = AnchorRules(1.0, 128, num_anchors, 0)
        self.leak = leak

    def loss(self, ids_BS: np.ndarray, epoch: int) -> MicroBatchLoss:
        rows, width = ids_BS.shape
        masks = list(np.ones((rows, width), dtype=np.uint8))
        keys = np.arange(rows, dtype=np.uint64)
        anchors = choose_anchors(masks, keys, np.arange(rows + 1), epoch, self.rules)
        slots = supervised_slots(anchors, np.stack(masks), BLOCK)
        ids, rows_A, anchors_A = (
            torch.from_numpy(each) for each in (ids_BS, anchors.rows_A, anchors.anchors_A)
        )
        shown_A = (anchors_A + self.leak).clamp(max=width - 1)
        embedded = functional.embedding(
            block_tokens(ids[rows_A, anchors_A], BLOCK, VOCABULARY), self.embedding_VH
        )
        features_BSF = functional.embedding(ids, self.embedding_VH)
        drafted = self.drafter.blocks(
            features_BSF, embedded, Blocks(rows_A, torch.zeros_like(rows_A), shown_A)
        )
        return micro_batch_loss(drafted, slots, ids, None, self.head, OBJECTIVE)

    def train(self, ids_BS: np.ndarray, epoch: int) -> float:
        loss = self.loss(ids_BS, epoch)
        mean = loss.loss_sum / loss.static_weight
        self.optimizer.zero_grad()
        mean.backward()
        self.optimizer.step()
        return mean.item()


def after_training_on_noise(num_anchors: int, leak: int = 0) -> tuple[float, float, float]:
    """Mean loss over fresh rows after 200 steps of fresh rows, its standard error over rows, and the slots it is of."""
    world, generator = World(num_anchors, leak), np.random.default_rng(0)
    # at most 128 anchors a row, so that nearly every place is one and blocks overlap
    shape = (max(1, num_anchors // 128), min(num_anchors, 128) + 12)
    for number in range(200):
        world.train(generator.integers(0, VOCABULARY, shape), number)
    losses, slots = [], 0.0
    with torch.no_grad():
        while slots < 20000 or len(losses) < 12:
            loss = world.loss(generator.integers(0, VOCABULARY, shape), 1000 + len(losses))
            losses.append(loss.loss_sum.item() / loss.static_weight)
            slots += loss.static_weight
    return float(np.mean(losses)), float(np.std(losses, ddof=1) / math.sqrt(len(losses))), slots


@pytest.mark.parametrize("num_anchors", [16, 512])
def test_nothing_is_learned_from_noise(num_anchors: int) -> None:
    """Below ln V would mean that blocks see what they predict, as with masks by block index (SpecForge #470)."""
    mean, error, slots = after_training_on_noise(num_anchors)
    assert slots >= 20000
    assert CHANCE - 3 * error <= mean < CHANCE + 0.1


def test_the_check_sees_a_leak() -> None:
    mean, _, _ = after_training_on_noise(16, leak=BLOCK)
    assert mean < 0.6 * CHANCE


def test_one_text_is_learned_by_heart() -> None:
    """Overfit one sample; then its leading runs are whole blocks (SpecForge #455: accuracy high, acceptance 1)."""
    world, text = World(40), np.random.default_rng(7).integers(0, VOCABULARY, (1, 40))
    assert abs(world.train(text, 0) - CHANCE) < 0.7
    for _ in range(250):
        last = world.train(text, 0)
    assert last < 0.05
    assert acceptance(world.loss(text, 0).counts.numpy()) > 0.97 * BLOCK
