"""Losses, weights and counts against loops over slots."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash.model.anchors import Slots
from dflash.model.drafter_config import paper_gamma
from dflash.model.objective import (
    COUNTED,
    Head,
    Objective,
    acceptance,
    dpace_weights,
    micro_batch_loss,
    slot_weights,
    static_weight,
)
from tests.model.tiny import rows_of

V, H = 50, 16


def world(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    rows = rows_of([[14], [9]], block_size=5)
    rows.ids_BS %= V
    return {
        "rows": rows,
        "drafted": torch.randn(len(rows.anchors.rows_A), 5, H, requires_grad=True),
        "final": torch.randn(2, 14, H),
        "head": Head(0.6 * torch.randn(V, H)),
    }


def loops(each: dict[str, Any], objective: Objective) -> tuple[Tensor, np.ndarray, float]:
    """The weighted sum, the counts and the static weight, one slot at a time in float64."""
    rows, head = each["rows"], each["head"].weight_VH.double()
    total, counts, static = torch.zeros((), dtype=torch.float64), np.zeros((len(COUNTED), 5)), 0.0
    for block in range(len(rows.anchors.rows_A)):
        row, anchor, end = (
            rows.anchors.rows_A[block],
            rows.anchors.anchors_A[block],
            rows.anchors.ends_A[block],
        )
        losses, run = {}, True
        for slot in range(1, 5):
            if anchor + slot >= end:
                run = False
                continue
            mine = (each["drafted"][block, slot].double() @ head.T).log_softmax(-1)
            target = (each["final"][row, anchor + slot - 1].double() @ head.T).log_softmax(-1)
            label = (
                int(target.argmax()) if objective.labels != "data" else int(rows.ids_BS[row, anchor + slot])
            )
            losses[slot] = (
                (target.exp() * (target - mine)).sum()
                if objective.labels == "target_distribution"
                else -mine[label]
            )
            correct = int(mine.argmax()) == label
            counts[:, slot] += [1, correct, run, run and correct, float(losses[slot].detach())]
            run = run and correct
        for slot, loss in losses.items():
            decay = 1.0 if objective.weighting == "uniform" else math.exp(-(slot - 1) / objective.gamma)
            static += decay
            weight = decay
            if objective.weighting == "dpace":
                confident = [
                    (1 - objective.dpace_alpha) * math.exp(-float(losses[k].detach())) + objective.dpace_alpha
                    for k in sorted(losses)
                ]
                weight = sum(math.prod(confident[: k + 1]) for k in range(slot - 1, len(confident)))
            total = total + weight * loss
    return total, counts, static


@pytest.mark.parametrize("labels", ["data", "target_argmax", "target_distribution"])
@pytest.mark.parametrize("weighting", ["decay", "dpace", "uniform"])
def test_equals_loops_over_slots(labels: Any, weighting: Any) -> None:
    each = world()
    objective = Objective(labels, weighting, gamma=2.5, dpace_alpha=0.3)
    mine = micro_batch_loss(
        each["drafted"], each["rows"].slots, each["rows"].ids_BS, each["final"], each["head"], objective
    )
    wanted, counts, static = loops(each, objective)
    assert mine.loss_sum.detach().item() == pytest.approx(wanted.item(), rel=1e-5)
    assert mine.static_weight == pytest.approx(static) == static_weight(each["rows"].slots, 5, objective)
    np.testing.assert_allclose(mine.counts.numpy(), counts, rtol=1e-5)
    (gradient,) = torch.autograd.grad(mine.loss_sum, each["drafted"])
    (exact,) = torch.autograd.grad(wanted, each["drafted"])
    assert (gradient - exact).abs().max() < 1e-5
    assert not gradient[:, 0].any(), "slot 0 is never trained"


def test_targets_states_are_needed_for_its_labels() -> None:
    each = world()
    with pytest.raises(
        ValueError, match="objective.labels is 'target_argmax', which needs the target's final states"
    ):
        micro_batch_loss(
            each["drafted"],
            each["rows"].slots,
            each["rows"].ids_BS,
            None,
            each["head"],
            Objective("target_argmax", "decay", 4, 0.5),
        )


def test_a_micro_batch_without_slots_adds_nothing_and_stops_nobody() -> None:
    each = world()
    empty = Slots(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
    for labels in ("data", "target_argmax", "target_distribution"):
        objective = Objective(labels, "dpace", 4.0, 0.5)
        drafted = torch.zeros(0, 5, H, requires_grad=True)
        mine = micro_batch_loss(drafted, empty, each["rows"].ids_BS, each["final"], each["head"], objective)
        mine.loss_sum.backward()
        assert (mine.loss_sum.item(), mine.static_weight, mine.counts.sum().item()) == (0.0, 0.0, 0.0)
    assert math.isnan(acceptance(mine.counts.numpy()))


def test_parts_of_a_step_add_up_to_the_whole() -> None:
    """Split over micro-batches or ranks, sum and divisor are those of one batch (Automodel #3899)."""
    each = world()
    rows, objective = each["rows"], Objective("data", "decay", 4.0, 0.5)
    whole = micro_batch_loss(each["drafted"], rows.slots, rows.ids_BS, None, each["head"], objective)
    (wanted,) = torch.autograd.grad(whole.loss_sum / whole.static_weight, each["drafted"])
    parts = []
    for row in range(2):
        kept = rows.slots.rows_M == row
        slots = Slots(*(column[kept] for column in vars(rows.slots).values()))
        parts.append(micro_batch_loss(each["drafted"], slots, rows.ids_BS, None, each["head"], objective))
    divisor = sum(part.static_weight for part in parts)
    gradients = [torch.autograd.grad(part.loss_sum / divisor, each["drafted"])[0] for part in parts]
    assert divisor == pytest.approx(whole.static_weight)
    assert (sum(gradients) - wanted).abs().max() < 1e-7
    np.testing.assert_allclose(sum(part.counts.numpy() for part in parts), whole.counts.numpy())


def test_weights_of_the_paper() -> None:
    weights = slot_weights(16, Objective("data", "decay", paper_gamma(16), 0.5))
    assert weights[0] == 0 and weights[1] == 1
    assert weights[8] == pytest.approx(math.exp(-1))
    assert [paper_gamma(size) for size in (16, 10, 8, 7)] == [7, 5, 4, 3]
    assert slot_weights(4, Objective("data", "uniform", 1.0, 0.5)).tolist() == [0, 1, 1, 1]


def test_dpace_is_the_gradient_of_the_expected_length() -> None:
    """With alpha 0: d(sum of products of p) / d(log p), taken by autograd."""
    losses = torch.rand(2, 4, dtype=torch.float64) * 2
    logs = (-losses).requires_grad_()
    logs.exp().cumprod(1).sum().backward()
    blocks, slots = torch.meshgrid(torch.arange(2), torch.arange(1, 5), indexing="ij")
    mine = dpace_weights(losses.flatten(), blocks.flatten(), slots.flatten(), (2, 5), 0.0)
    assert torch.allclose(mine, logs.grad.flatten())


def test_acceptance_is_the_mean_leading_run_plus_one() -> None:
    generator = np.random.default_rng(0)
    right = generator.random((500, 7)) < 0.7
    runs = np.cumprod(right, axis=1)
    counts = np.zeros((len(COUNTED), 8))
    counts[COUNTED.index("accepted"), 1:] = runs.sum(axis=0)
    counts[COUNTED.index("reached"), 1:] = [500, *runs.sum(axis=0)[:-1]]
    assert acceptance(counts) == pytest.approx(runs.sum(axis=1).mean() + 1)


def test_blocks_that_end_early_do_not_bias_acceptance() -> None:
    """Half of the blocks are cut after two slots; the estimate stays that of whole blocks."""
    generator = np.random.default_rng(1)
    right = generator.random((40000, 7)) < 0.8
    ends = np.where(np.arange(40000) % 2 == 0, 7, 2)
    supervised = np.arange(7) < ends[:, None]
    good = np.cumprod(right & supervised, axis=1).astype(bool)
    before = np.concatenate([np.ones((40000, 1), bool), good[:, :-1]], axis=1)
    counts = np.zeros((len(COUNTED), 8))
    counts[COUNTED.index("reached"), 1:] = (before & supervised).sum(axis=0)
    counts[COUNTED.index("accepted"), 1:] = good.sum(axis=0)
    assert acceptance(counts) == pytest.approx(1 + sum(0.8**k for k in range(1, 8)), rel=0.01)
