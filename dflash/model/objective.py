"""What the drafter learns: weighted losses of the supervised slots, summed, and what to divide the sum by.

The loss of an optimizer step is sum(weight x loss) over every supervised slot of the step, whatever the ranks and
micro-batches, divided by the step's `static_weight`: the sum of the same slots' fixed weights, which masks and anchors
give before any forward pass. D-PACE's weights (arXiv:2605.18810) depend on the drafter and are detached; they enter the
sum but not the divisor, which is then the one of the decay.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dflash.kernels.anchor_attention import Backend
from dflash.kernels.linear_cross_entropy import linear_argmax, linear_cross_entropy, linear_kl
from dflash.model.anchors import Slots

Labels = Literal["data", "target_argmax", "target_distribution"]
Weighting = Literal["decay", "dpace", "uniform"]


@dataclass(frozen=True)
class Objective:
    """What is learned. gamma: decay of the slot weights; dpace_alpha: smoothing of D-PACE."""

    labels: Labels
    weighting: Weighting
    gamma: float
    dpace_alpha: float


@dataclass(frozen=True)
class Head:
    """The target's frozen projection to the vocabulary. softcap: bound c of logits c tanh(x / c), None for none."""

    weight_VH: Tensor
    bias_V: Tensor | None = None
    softcap: float | None = None


COUNTED = ("supervised", "correct", "reached", "accepted", "loss")
"""Rows of the counts, which add up over micro-batches and ranks; a column a slot, slot 0 always 0.

supervised, correct: supervised slots, and those whose most likely token is the label. reached: blocks in which this
slot is supervised and every slot before is supervised and correct; accepted: those in which it is correct too. loss:
sum of the unweighted losses.
"""


@dataclass(frozen=True)
class MicroBatchLoss:
    """What a micro-batch adds to its step.

    Attributes:
        loss_sum: weighted sum, a float32 scalar with a gradient. static_weight: share of the step's divisor.
        counts_CAL: float64, a row of `COUNTED` and a block each, on the drafter's device.
    """

    loss_sum: Tensor
    static_weight: float
    counts_CAL: Tensor

    @property
    def counts(self) -> Tensor:
        """Summed over the blocks, float64 [len(COUNTED), L]."""
        return self.counts_CAL.sum(dim=1)


def acceptance(counts: np.ndarray) -> float:
    """Teacher-forced acceptance length of summed counts, the bonus token included; NaN without a block.

    Definition: 1 + sum over slots of the probability that the slot and all before it are correct, the context being the
    data's text. The probability is the product of accepted / reached, so that a block that ends early (the end of a
    text, an unsupervised token) counts as far as it goes; without such blocks it is the plain mean of the leading
    correct run plus 1.
    """
    reached, accepted = counts[COUNTED.index("reached"), 1:], counts[COUNTED.index("accepted"), 1:]
    if reached[0] == 0:
        return float("nan")
    rates = np.divide(accepted, reached, out=np.zeros_like(reached), where=reached > 0)
    return float(1.0 + np.cumprod(rates).sum())


def slot_weights(block_size: int, objective: Objective) -> np.ndarray:
    """The fixed weight of every slot, float64 [L]: exp(-(k - 1) / gamma), or one; slot 0 has none."""
    slots = np.arange(block_size)
    weights = (
        np.ones(block_size) if objective.weighting == "uniform" else np.exp(-(slots - 1) / objective.gamma)
    )
    return np.where(slots > 0, weights, 0.0)


def static_weight(slots: Slots, block_size: int, objective: Objective) -> float:
    """What a micro-batch adds to its step's divisor. Needs no tokens and no model."""
    return float(slot_weights(block_size, objective)[slots.slots_M].sum())


def micro_batch_loss(
    drafted_ALH: Tensor,
    slots: Slots,
    ids_BS: Tensor,
    final_hidden_BSH: Tensor | None,
    head: Head,
    objective: Objective,
    backend: Backend = "reference",
) -> MicroBatchLoss:
    """The loss of a micro-batch: only supervised slots are projected to the vocabulary, in chunks.

    Args:
        drafted_ALH: what `Drafter.blocks` gave.
        slots: the supervised slots; none gives a loss of 0 whose gradient is 0.
        ids_BS: int64 tokens, the labels.
        final_hidden_BSH: the target's states after its final norm; needed for labels of the target.
        head: the target's.

    Raises:
        ValueError: labels of the target without its final states.
    """
    block_size = drafted_ALH.shape[1]
    device = drafted_ALH.device
    blocks_M, slots_M, rows_M, places_M = (torch.from_numpy(each).to(device) for each in vars(slots).values())
    drafted_MH = drafted_ALH[blocks_M, slots_M].to(head.weight_VH.dtype)
    projection: dict[str, Any] = {"bias_V": head.bias_V, "softcap": head.softcap, "backend": backend}
    if objective.labels == "data":
        losses_M, correct_M = linear_cross_entropy(
            drafted_MH, head.weight_VH, ids_BS[rows_M, places_M].long(), **projection
        )
    else:
        if final_hidden_BSH is None:
            raise ValueError(
                f"objective.labels is {objective.labels!r}, which needs the target's final states; none were sent"
            )
        # the target predicts a token at the place before it
        target_MH = final_hidden_BSH[rows_M, places_M - 1].to(drafted_MH.dtype)
        if objective.labels == "target_argmax":
            labels_M = linear_argmax(target_MH, head.weight_VH, **projection)
            losses_M, correct_M = linear_cross_entropy(drafted_MH, head.weight_VH, labels_M, **projection)
        else:
            losses_M, correct_M = linear_kl(drafted_MH, head.weight_VH, target_MH, **projection)
    weights_L = torch.from_numpy(slot_weights(block_size, objective)).to(device, torch.float32)
    weights_M = weights_L[slots_M]
    shape = (drafted_ALH.shape[0], block_size)
    if objective.weighting == "dpace":
        weights_M = dpace_weights(losses_M.detach(), blocks_M, slots_M, shape, objective.dpace_alpha)
    return MicroBatchLoss(
        loss_sum=(weights_M * losses_M).sum(),
        static_weight=static_weight(slots, block_size, objective),
        counts_CAL=_counted(losses_M.detach(), correct_M, blocks_M, slots_M, shape),
    )


def dpace_weights(
    losses_M: Tensor, blocks_M: Tensor, slots_M: Tensor, shape: tuple[int, int], alpha: float
) -> Tensor:
    """D-PACE: how much the expected accepted length grows with a slot's log-likelihood. float32 [M].

    With smoothed confidences q = (1 - alpha) exp(-loss) + alpha and their products Q_k = q_1 ... q_k inside a block, the
    weight of slot k is Q_k + Q_k+1 + ... over the block's supervised slots; unsupervised ones leave the products as
    they are. Source: arXiv:2605.18810.

    Args:
        shape: blocks and slots, (A, L).
    """
    confident_AL = losses_M.new_ones(shape)
    confident_AL[blocks_M, slots_M] = (1.0 - alpha) * torch.exp(-losses_M) + alpha
    supervised_AL = losses_M.new_zeros(shape)
    supervised_AL[blocks_M, slots_M] = 1.0
    products_AL = confident_AL.cumprod(dim=1) * supervised_AL
    return products_AL.flip(1).cumsum(dim=1).flip(1)[blocks_M, slots_M]


def _counted(
    losses_M: Tensor, correct_M: Tensor, blocks_M: Tensor, slots_M: Tensor, shape: tuple[int, int]
) -> Tensor:
    """Float64 [len(COUNTED), A, L]; stays on the device, so that counting waits for nothing."""
    supervised_AL, correct_AL = (
        torch.zeros(shape, dtype=torch.bool, device=losses_M.device) for _ in range(2)
    )
    loss_AL = torch.zeros(shape, dtype=torch.float64, device=losses_M.device)
    supervised_AL[blocks_M, slots_M] = True
    correct_AL[blocks_M, slots_M] = correct_M
    loss_AL[blocks_M, slots_M] = losses_M.double()
    good_AL = correct_AL.clone()
    good_AL[:, 0] = True
    before_AL = good_AL.long().cumprod(dim=1).bool().roll(1, dims=1)
    reached_AL = before_AL & supervised_AL
    counted = (supervised_AL, correct_AL, reached_AL, reached_AL & correct_AL, loss_AL)
    return torch.stack([each.double() for each in counted])
