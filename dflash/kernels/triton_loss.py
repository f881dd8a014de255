"""Losses over the vocabulary on GPUs: matrix products by cuBLAS, everything between them in one Triton kernel.

The walk is that of `reference_loss`: the head is multiplied twice (three times for the divergence, once more for the
target's side), in tiles of bounded size. Libraries that fuse the product itself multiply the head three times, for they
compute logits again in the backward pass. What costs time beside products is traffic: a tile of logits is read by one
kernel, which leaves the weights of the second product in its place in the head's type. Every sum has a fixed order.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_ENTRIES = 16384
"""Vocabulary entries of a tile of logits."""
TILE_BYTES = 64 << 20
"""Bytes of a tile of float32 logits at most (one row at least)."""
BLOCK = 2048
"""Logits that a program holds at once."""
NUM_WARPS = 8


@triton.jit(do_not_specialize=["first", "width", "stride"], do_not_specialize_on_alignment=["labels_ptr"])
def softmax_tile_kernel(
    logits_ptr,
    weights_ptr,
    labels_ptr,
    bias_ptr,
    highest_ptr,
    total_ptr,
    label_ptr,
    shrink_ptr,
    slope_ptr,
    first,
    width,
    stride,
    softcap,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of a tile: highest logit and sum so far, the label's logit, and the weights exp(logit - highest).

    logits, weights: [rows, stride], `width` of which are entries first .. first + width - 1 of the vocabulary.
    highest, total, label: the row's state, updated. shrink: what earlier sums must be multiplied with.
    slope: derivative of the cap at the label. All float32 but the labels, int64, and the weights, in the head's type.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    weights_ptr += row * stride
    lanes = tl.arange(0, BLOCK)
    wanted = tl.load(labels_ptr + row) - first
    before = tl.load(highest_ptr + row)
    label = tl.load(label_ptr + row)
    slope = tl.load(slope_ptr + row)
    highest = tl.full((BLOCK,), -3.0e38, tl.float32)
    for begin in range(0, width, BLOCK):
        here = begin + lanes
        inside = here < width
        value = tl.load(logits_ptr + here, mask=inside, other=-3.0e38)
        if HAS_BIAS:
            value += tl.load(bias_ptr + first + here, mask=inside, other=0.0).to(tl.float32)
        if HAS_CAP:
            bent = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * value / softcap))
            value = softcap * bent
            chosen = (here == wanted) & inside
            slope += tl.sum(tl.where(chosen, 1.0 - bent * bent, 0.0))
        if HAS_BIAS or HAS_CAP:
            tl.store(logits_ptr + here, value, mask=inside)
        label = tl.maximum(label, tl.max(tl.where((here == wanted) & inside, value, float("-inf"))))
        highest = tl.maximum(highest, tl.where(inside, value, -3.0e38))
    above = tl.maximum(before, tl.max(highest))
    if HAS_BIAS or HAS_CAP:
        tl.debug_barrier()
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, width, BLOCK):
        here = begin + lanes
        inside = here < width
        value = tl.load(logits_ptr + here, mask=inside, other=float("-inf"))
        weight = tl.exp(value - above)
        total += weight
        if HAS_CAP:
            weight *= 1.0 - (value / softcap) * (value / softcap)
        tl.store(weights_ptr + here, weight.to(weights_ptr.dtype.element_ty), mask=inside)
    shrink = tl.exp(before - above)
    tl.store(shrink_ptr + row, shrink)
    tl.store(total_ptr + row, tl.load(total_ptr + row) * shrink + tl.sum(total))
    tl.store(highest_ptr + row, above)
    tl.store(label_ptr + row, label)
    tl.store(slope_ptr + row, slope)


@triton.jit
def _read(logits_ptr, bias_ptr, here, inside, softcap, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr):
    value = tl.load(logits_ptr + here, mask=inside, other=-1.0e38)
    if HAS_BIAS:
        value += tl.load(bias_ptr + here, mask=inside, other=0.0).to(tl.float32)
    if HAS_CAP:
        value = softcap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * value / softcap)))
    return tl.where(inside, tl.maximum(value, -1.0e38), -1.0e38)


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["losses_ptr", "agree_ptr"])
def divergence_row_kernel(
    drafted_ptr,
    target_ptr,
    change_ptr,
    bias_ptr,
    losses_ptr,
    agree_ptr,
    width,
    softcap,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row at full width: KL(target || drafter), agreement, and the change (drafter's softmax - target's).

    drafted, target: float32 logits [rows, width]; change: [rows, width] in the head's type. losses: float32.
    agree: int8, whether no logit of the drafter exceeds that of the target's first most likely entry.
    """
    row = tl.program_id(0).to(tl.int64)
    drafted_ptr += row * width
    target_ptr += row * width
    change_ptr += row * width
    lanes = tl.arange(0, BLOCK)
    drafted_high, target_high = -1.0e38, -1.0e38
    drafted_total, target_total = 0.0, 0.0
    at_best = -1.0e38
    for begin in range(0, width, BLOCK):
        here = begin + lanes
        inside = here < width
        drafted = _read(drafted_ptr, bias_ptr, here, inside, softcap, HAS_BIAS, HAS_CAP)
        target = _read(target_ptr, bias_ptr, here, inside, softcap, HAS_BIAS, HAS_CAP)
        high = tl.maximum(drafted_high, tl.max(drafted))
        drafted_total = drafted_total * tl.exp(drafted_high - high) + tl.sum(
            tl.where(inside, tl.exp(drafted - high), 0.0)
        )
        drafted_high = high
        best = tl.max(target)
        place = tl.min(tl.where((target == best) & inside, here, width))
        at_place = tl.max(tl.where(here == place, drafted, -1.0e38))
        at_best = tl.where((best > target_high) | (begin == 0), at_place, at_best)
        high = tl.maximum(target_high, best)
        target_total = target_total * tl.exp(target_high - high) + tl.sum(
            tl.where(inside, tl.exp(target - high), 0.0)
        )
        target_high = high
    drafted_lse = drafted_high + tl.log(drafted_total)
    target_lse = target_high + tl.log(target_total)
    loss = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, width, BLOCK):
        here = begin + lanes
        inside = here < width
        drafted = _read(drafted_ptr, bias_ptr, here, inside, softcap, HAS_BIAS, HAS_CAP)
        log_p = drafted - drafted_lse
        log_q = _read(target_ptr, bias_ptr, here, inside, softcap, HAS_BIAS, HAS_CAP) - target_lse
        q = tl.exp(log_q)
        loss += tl.where(inside, q * (log_q - log_p), 0.0)
        change = tl.exp(log_p) - q
        if HAS_CAP:
            change *= 1.0 - (drafted / softcap) * (drafted / softcap)
        tl.store(change_ptr + here, change.to(change_ptr.dtype.element_ty), mask=inside)
    tl.store(losses_ptr + row, tl.sum(loss))
    tl.store(agree_ptr + row, (at_best >= drafted_high).to(tl.int8))


def linear_cross_entropy(
    hidden_MH: Tensor,
    head_VH: Tensor,
    labels_M: Tensor,
    *,
    bias_V: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As `dflash.kernels.linear_cross_entropy.linear_cross_entropy`."""
    losses_M, correct_M = _CrossEntropy.apply(hidden_MH, head_VH, labels_M, bias_V, softcap)
    return losses_M, correct_M


def linear_kl(
    hidden_MH: Tensor,
    head_VH: Tensor,
    target_hidden_MH: Tensor,
    *,
    bias_V: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As `dflash.kernels.linear_cross_entropy.linear_kl`."""
    losses_M, agree_M = _Divergence.apply(hidden_MH, head_VH, target_hidden_MH, bias_V, softcap)
    return losses_M, agree_M


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_MH, head_VH, labels_M, bias_V, softcap):  # type: ignore[no-untyped-def]
        losses_M = hidden_MH.new_empty(len(hidden_MH), dtype=torch.float32)
        correct_M = hidden_MH.new_empty(len(hidden_MH), dtype=torch.bool)
        gradient_MH = torch.empty_like(hidden_MH)
        width = min(TILE_ENTRIES, len(head_VH))
        for rows in _steps(len(hidden_MH), max(1, TILE_BYTES // (4 * width))):
            losses_M[rows], correct_M[rows], gradient_MH[rows] = _cross_entropy_rows(
                hidden_MH[rows], head_VH, labels_M[rows].contiguous(), bias_V, softcap, width
            )
        ctx.save_for_backward(gradient_MH)
        ctx.mark_non_differentiable(correct_M)
        return losses_M, correct_M

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, incoming_M, _):  # type: ignore[no-untyped-def]
        (gradient_MH,) = ctx.saved_tensors
        return (gradient_MH * incoming_M[:, None]).to(gradient_MH.dtype), None, None, None, None


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_MH, head_VH, target_MH, bias_V, softcap):  # type: ignore[no-untyped-def]
        losses_M = hidden_MH.new_empty(len(hidden_MH), dtype=torch.float32)
        agree_M = hidden_MH.new_empty(len(hidden_MH), dtype=torch.int8)
        gradient_MH = torch.empty_like(hidden_MH)
        size = len(head_VH)
        for rows in _steps(len(hidden_MH), max(1, TILE_BYTES // (4 * size))):
            drafted = _product(hidden_MH[rows], head_VH.t())
            target = _product(target_MH[rows], head_VH.t())
            change = torch.empty_like(drafted, dtype=head_VH.dtype)
            divergence_row_kernel[(len(drafted),)](
                drafted,
                target,
                change,
                drafted if bias_V is None else bias_V,
                losses_M[rows],
                agree_M[rows],
                size,
                float(softcap or 0.0),
                HAS_BIAS=bias_V is not None,
                HAS_CAP=softcap is not None,
                BLOCK=BLOCK,
                num_warps=NUM_WARPS,
            )
            gradient_MH[rows] = _product(change, head_VH)
        ctx.save_for_backward(gradient_MH)
        agree_M = agree_M.bool()
        ctx.mark_non_differentiable(agree_M)
        return losses_M, agree_M

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, incoming_M, _):  # type: ignore[no-untyped-def]
        (gradient_MH,) = ctx.saved_tensors
        return (gradient_MH * incoming_M[:, None]).to(gradient_MH.dtype), None, None, None, None


def _cross_entropy_rows(
    hidden: Tensor, head_VH: Tensor, labels: Tensor, bias_V: Tensor | None, softcap: float | None, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows = len(hidden)
    highest = hidden.new_full((num_rows,), -3.0e38, dtype=torch.float32)
    total, shrink, slope = (torch.zeros_like(highest) for _ in range(3))
    label = torch.full_like(highest, float("-inf"))
    gradient = hidden.new_zeros(hidden.shape, dtype=torch.float32)
    weights = hidden.new_empty((num_rows, width), dtype=head_VH.dtype)
    for entries in _steps(len(head_VH), width):
        head = head_VH[entries]
        logits = _product(hidden, head.t())
        tile = (
            weights[:, : len(head)]
            if len(head) == width
            else hidden.new_empty(logits.shape, dtype=head_VH.dtype)
        )
        softmax_tile_kernel[(num_rows,)](
            logits,
            tile,
            labels,
            logits if bias_V is None else bias_V,
            highest,
            total,
            label,
            shrink,
            slope,
            entries.start,
            len(head),
            len(head),
            float(softcap or 0.0),
            HAS_BIAS=bias_V is not None,
            HAS_CAP=softcap is not None,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
        )
        gradient.mul_(shrink[:, None]).add_(_product(tile, head))
    at_label = head_VH[labels].float()
    gradient.div_(total[:, None]).sub_(at_label if softcap is None else at_label * slope[:, None])
    return total.log() + highest - label, label >= highest, gradient


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right with float32 sums and a float32 result."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    return torch.mm(left.float(), right.float())


def _steps(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
