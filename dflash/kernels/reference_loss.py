"""Losses over the vocabulary in plain PyTorch: what runs on CPUs, and what the Triton kernels are held against.

The head is frozen, so a row's gradient (softmax - label) @ head is made in the forward pass and the backward pass only
scales it: the head is multiplied twice, not three times, and no tensor has rows x vocabulary entries. Cross-entropy
walks the vocabulary in tiles as FlashAttention walks keys (arXiv:2205.14135): what is summed so far is scaled down when
a larger logit turns up. The divergence needs both softmaxes at once and holds a few rows at full width instead.
"""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

TILE_BYTES = 16 << 20
"""Bytes of a tile of logits: small enough for caches, large enough for efficient products."""
TILE_ROWS = 1024
"""Rows of a tile at most."""
FULL_WIDTH_BYTES = 96 << 20
"""Bytes of one side's logits where rows are held at full width (one row at least)."""


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


@torch.no_grad()
def linear_argmax(hidden_MH: Tensor, head_VH: Tensor, *, bias_V: Tensor | None = None) -> Tensor:
    """As `dflash.kernels.linear_cross_entropy.linear_argmax`, whose soft cap changes no order."""
    found_M = torch.zeros(len(hidden_MH), dtype=torch.long, device=hidden_MH.device)
    for rows in _steps(len(hidden_MH), TILE_ROWS):
        highest = torch.full_like(found_M[rows], 0, dtype=_dtype(hidden_MH)).fill_(float("-inf"))
        hidden = hidden_MH[rows].to(_product_dtype(hidden_MH))
        for entries in _tiles(len(hidden), head_VH):
            values, places = _logits(hidden, head_VH[entries], _cut(bias_V, entries), None).max(dim=-1)
            above = values > highest
            highest = torch.where(above, values, highest)
            found_M[rows] = torch.where(above, places + entries.start, found_M[rows])
    return found_M


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_MH, head_VH, labels_M, bias_V, softcap):  # type: ignore[no-untyped-def]
        losses_M = torch.empty(len(hidden_MH), dtype=_dtype(hidden_MH), device=hidden_MH.device)
        correct_M = torch.empty(len(hidden_MH), dtype=torch.bool, device=hidden_MH.device)
        gradient_MH = torch.empty_like(hidden_MH) if ctx.needs_input_grad[0] else None
        for rows in _steps(len(hidden_MH), TILE_ROWS):
            losses_M[rows], correct_M[rows], gradient = _cross_entropy_rows(
                hidden_MH[rows], head_VH, labels_M[rows], bias_V, softcap, gradient_MH is not None
            )
            if gradient_MH is not None and gradient is not None:
                gradient_MH[rows] = gradient
        ctx.save_for_backward(gradient_MH)
        ctx.mark_non_differentiable(correct_M)
        return losses_M, correct_M

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, incoming_M, _):  # type: ignore[no-untyped-def]
        return _scaled(ctx.saved_tensors[0], incoming_M), None, None, None, None


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_MH, head_VH, target_MH, bias_V, softcap):  # type: ignore[no-untyped-def]
        losses_M = torch.empty(len(hidden_MH), dtype=_dtype(hidden_MH), device=hidden_MH.device)
        agree_M = torch.empty(len(hidden_MH), dtype=torch.bool, device=hidden_MH.device)
        gradient_MH = torch.empty_like(hidden_MH) if ctx.needs_input_grad[0] else None
        num_rows = min(TILE_ROWS, max(1, FULL_WIDTH_BYTES // (4 * len(head_VH))))
        for rows in _steps(len(hidden_MH), num_rows):
            losses_M[rows], agree_M[rows], gradient = _divergence_rows(
                hidden_MH[rows], head_VH, target_MH[rows], bias_V, softcap, gradient_MH is not None
            )
            if gradient_MH is not None and gradient is not None:
                gradient_MH[rows] = gradient
        ctx.save_for_backward(gradient_MH)
        ctx.mark_non_differentiable(agree_M)
        return losses_M, agree_M

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, incoming_M, _):  # type: ignore[no-untyped-def]
        return _scaled(ctx.saved_tensors[0], incoming_M), None, None, None, None


def _cross_entropy_rows(
    hidden_MH: Tensor,
    head_VH: Tensor,
    labels_M: Tensor,
    bias_V: Tensor | None,
    softcap: float | None,
    wants_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Losses, correctness and gradients of a few rows; tile after tile of the vocabulary."""
    hidden = hidden_MH.to(_product_dtype(hidden_MH))
    highest = torch.full(
        (len(hidden), 1), torch.finfo(torch.float32).min, dtype=_dtype(hidden_MH), device=hidden.device
    )
    total, label = torch.zeros_like(highest), torch.full_like(highest, float("-inf"))
    gradient = (
        torch.zeros(hidden.shape, dtype=highest.dtype, device=hidden.device) if wants_gradient else None
    )
    for entries in _tiles(len(hidden), head_VH):
        head = head_VH[entries].to(hidden.dtype)
        logits = _logits(hidden, head, _cut(bias_V, entries), softcap)
        here = (labels_M - entries.start)[:, None]
        inside = (here >= 0) & (here < logits.shape[1])
        label = torch.where(inside, logits.gather(1, here.clamp(0, logits.shape[1] - 1)), label)
        above = torch.maximum(highest, logits.amax(dim=-1, keepdim=True))
        shrink = (highest - above).exp_()
        slope = None if softcap is None else _slope(logits, softcap)
        weights = logits.sub_(above).exp_()
        total = total.mul_(shrink).add_(weights.sum(dim=-1, keepdim=True))
        highest = above
        if gradient is not None:
            _add_product(gradient.mul_(shrink), weights if slope is None else weights.mul_(slope), head)
    losses = (total.log() + highest - label)[:, 0]
    correct = (label >= highest)[:, 0]
    if gradient is not None:
        at_label = head_VH[labels_M].to(gradient.dtype)
        gradient.div_(total).sub_(at_label if softcap is None else at_label * _slope(label, softcap))
    return losses, correct, gradient


def _divergence_rows(
    hidden_MH: Tensor,
    head_VH: Tensor,
    target_MH: Tensor,
    bias_V: Tensor | None,
    softcap: float | None,
    wants_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Losses, agreement and gradients of a few rows at full width."""
    drafted, _ = _full_width(hidden_MH, head_VH, bias_V, softcap)
    target, best = _full_width(target_MH, head_VH, bias_V, softcap)
    agree = (drafted.gather(1, best) >= drafted.amax(dim=-1, keepdim=True))[:, 0]
    target_total, drafted_total = _log_total(target), _log_total(drafted)
    losses = torch.zeros(len(drafted), dtype=drafted.dtype, device=drafted.device)
    gradient = (
        torch.zeros(hidden_MH.shape, dtype=drafted.dtype, device=drafted.device) if wants_gradient else None
    )
    for entries in _tiles(len(drafted), head_VH):
        log_p, log_q = drafted[:, entries], target[:, entries]
        slope = None if softcap is None else _slope(log_p, softcap)
        log_q.sub_(target_total)
        log_p.sub_(drafted_total)
        excess = log_q - log_p
        weights = log_q.exp_()
        losses += excess.mul_(weights).sum(dim=-1)
        if gradient is not None:
            change = log_p.exp_().sub_(weights)
            head = head_VH[entries].to(_product_dtype(hidden_MH))
            _add_product(gradient, change if slope is None else change.mul_(slope), head)
    return losses, agree, gradient


def _full_width(
    hidden_MH: Tensor, head_VH: Tensor, bias_V: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Logits [M, V], at least the smallest finite number, and the place of the largest, int64 [M, 1]."""
    hidden = hidden_MH.to(_product_dtype(hidden_MH))
    logits = torch.empty((len(hidden), len(head_VH)), dtype=_dtype(hidden_MH), device=hidden.device)
    for entries in _tiles(len(hidden), head_VH):
        logits[:, entries] = _logits(hidden, head_VH[entries], _cut(bias_V, entries), softcap)
    # a bias of minus infinity on both sides must not become the difference of two infinities
    logits.clamp_(min=torch.finfo(torch.float32).min / 4)
    return logits, logits.argmax(dim=-1, keepdim=True)


def _log_total(logits: Tensor) -> Tensor:
    """Log of the sum of exponentials of rows, [M, 1]; no second tensor of the logits' size."""
    highest = logits.amax(dim=-1, keepdim=True)
    total = torch.zeros_like(highest)
    for entries in _steps(logits.shape[1], max(1, TILE_BYTES // (4 * len(logits)))):
        total += (logits[:, entries] - highest).exp_().sum(dim=-1, keepdim=True)
    return total.log_().add_(highest)


def _logits(hidden: Tensor, head: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """Logits of a tile, in the type that sums are made in; the cap follows the bias."""
    logits = torch.mm(hidden, head.to(hidden.dtype).t()).to(_dtype(hidden))
    if bias is not None:
        logits += bias
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def _slope(capped: Tensor, softcap: float) -> Tensor:
    """Derivative of the cap where it gave `capped`."""
    return 1.0 - (capped / softcap) ** 2


def _add_product(sums: Tensor, weights: Tensor, head: Tensor) -> None:
    if sums.dtype == head.dtype:
        sums.addmm_(weights, head)
    else:
        sums.add_(torch.mm(weights.to(head.dtype), head))


def _scaled(gradient_MH: Tensor | None, incoming_M: Tensor) -> Tensor:
    assert gradient_MH is not None
    return (gradient_MH * incoming_M[:, None]).to(gradient_MH.dtype)


def _steps(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def _tiles(num_rows: int, head_VH: Tensor) -> Iterator[slice]:
    """Vocabulary entries at a time."""
    return _steps(len(head_VH), max(256, TILE_BYTES // (4 * num_rows)))


def _cut(bias_V: Tensor | None, entries: slice) -> Tensor | None:
    return None if bias_V is None else bias_V[entries]


def _dtype(like: Tensor) -> torch.dtype:
    """What sums and softmaxes are made in."""
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def _product_dtype(like: Tensor) -> torch.dtype:
    """What products are made in: a CPU without matrix units multiplies float32 twice as fast as bfloat16."""
    if like.device.type == "cpu" and not (like.dtype == torch.bfloat16 and _has_matrix_units()):
        return _dtype(like)
    return like.dtype


@functools.cache
def _has_matrix_units() -> bool:
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))
