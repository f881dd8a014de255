"""Keyed sampling: uniform, independent of the batch, and of the right distribution."""

import numpy as np
import torch

from dflash.evaluation.sampling import choose, keyed_uniforms


def test_a_number_depends_on_its_key_alone() -> None:
    prompts, positions = np.arange(5), np.arange(50)[None].repeat(5, 0)
    whole = keyed_uniforms(3, prompts, positions)
    np.testing.assert_array_equal(whole[2:3, 10:20], keyed_uniforms(3, prompts[2:3], positions[2:3, 10:20]))
    assert (whole != keyed_uniforms(4, prompts, positions)).all()
    assert len(np.unique(whole)) == whole.size


def test_the_numbers_are_uniform_and_uncorrelated() -> None:
    numbers = keyed_uniforms(0, np.arange(400), np.arange(500)[None].repeat(400, 0))
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, 100, (0, 1))[0]
    expected = numbers.size / 100
    assert ((counts - expected) ** 2 / expected).sum() < 99 + 5 * np.sqrt(2 * 99)
    for left, right in ((numbers[:, 1:], numbers[:, :-1]), (numbers[1:], numbers[:-1])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 5 / np.sqrt(left.size)


def test_choices_follow_the_softmax() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, -30.0])
    numbers = keyed_uniforms(1, np.arange(1), np.arange(100_000)[None])
    chosen = choose(logits.expand(1, 100_000, 5), 0.7, numbers)[0].numpy()
    expected = (logits.double() / 0.7).softmax(0).numpy() * 100_000
    counts = np.bincount(chosen, minlength=5)
    assert ((counts - expected) ** 2 / expected).sum() < 4 + 5 * np.sqrt(8)


def test_greedy_takes_the_first_of_equals_and_ends_of_the_interval_stay_inside() -> None:
    logits = torch.zeros(1, 1, 4)
    assert choose(logits, 0.0, np.array([[0.9]])).item() == 0
    assert choose(logits, 1.0, np.array([[0.0]])).item() == 0
    assert choose(logits, 1.0, np.array([[1 - 2.0**-53]])).item() == 3
    # a token of probability zero is never chosen, not even at the edge
    impossible = torch.tensor([[[-torch.inf, 0.0, -torch.inf]]])
    assert choose(impossible, 1.0, np.array([[0.0]])).item() == 1
    assert choose(impossible, 1.0, np.array([[1 - 2.0**-53]])).item() == 1
