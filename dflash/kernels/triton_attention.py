"""Block attention in Triton, forward and backward (FlashAttention-2's scheme, arXiv:2307.08691).

A program takes a few neighboring anchors of one key head, with all query heads that share it, so that keys are read
once for all of them. Tiles are cut by index alone, without asking the device for anything: a tile whose anchors lie in
several rows walks each of these rows. The gradients of the context are made by programs that own a stretch of keys and
walk the anchors behind it, so sums have a fixed order and nothing is added atomically. How many anchors there are is
an argument like any other: it compiles nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.attention_tiles import backward_block_sizes, backward_context_sizes, num_warps, tile_sizes

NUM_STAGES = 2
COUNTS = ("A", "S", "WINDOW")
"""Arguments whose value, 1 or a multiple of 16 or neither, must not compile a kernel of its own."""
PLACES = ("rows_ptr", "starts_ptr", "anchors_ptr")
"""Pointers that may lead into the middle of a tensor, 8 bytes off a multiple of 16."""


@triton.jit
def _product(left, right, UPCAST: tl.constexpr):
    """left @ right with float32 sums. UPCAST: the interpreter multiplies bfloat16 wrongly, so it gets float32."""
    if UPCAST:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def _tile(first, A, L: tl.constexpr, G: tl.constexpr, TA: tl.constexpr, R: tl.constexpr):
    """Which anchor, query of the group and slot each of the R queries is: anchor, group, slot, valid."""
    lanes = tl.arange(0, R)
    anchor = first + lanes // (G * L)
    valid = (lanes < TA * G * L) & (anchor < A)
    return anchor, (lanes // L) % G, lanes % L, valid


@triton.jit
def _seen(columns, row, anchor_rows, starts, anchors, slots, valid, WINDOW, HAS_WINDOW: tl.constexpr):
    """[R, columns]: which context columns of `row` a query sees."""
    mine = (valid & (anchor_rows == row))[:, None]
    seen = mine & (columns[None, :] < anchors[:, None]) & (columns[None, :] >= starts[:, None])
    if HAS_WINDOW:
        seen = seen & (columns[None, :] > (anchors + slots)[:, None] - WINDOW)
    return seen


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=PLACES)
def forward_kernel(
    q_ptr, kc_ptr, vc_ptr, kb_ptr, vb_ptr, out_ptr, lse_ptr, rows_ptr, starts_ptr, anchors_ptr, scale, A, S, WINDOW,
    K: tl.constexpr, G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, TA: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    BD: tl.constexpr, BN: tl.constexpr, HAS_WINDOW: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Output [A, L, N, D] and log-sum-exp [A, L, N] of a tile of anchors and a key head. C: own keys, padded."""
    first, head = tl.program_id(0) * TA, tl.program_id(1)
    last = tl.minimum(first + TA, A) - 1
    anchor, group, slot, valid = _tile(first, A, L, G, TA, R)
    dims = tl.arange(0, BD)
    real = dims < D
    places = ((anchor.to(tl.int64) * L + slot) * (K * G) + head * G + group) * D
    query = tl.load(q_ptr + places[:, None] + dims[None, :], mask=valid[:, None] & real[None, :], other=0.0)
    starts = tl.load(starts_ptr + anchor, mask=valid, other=1 << 30).to(tl.int32)
    anchors = tl.load(anchors_ptr + anchor, mask=valid, other=0).to(tl.int32)
    anchor_rows = tl.load(rows_ptr + anchor, mask=valid, other=-1).to(tl.int32)

    own = tl.arange(0, C)
    own_anchor = first + own // L
    own_valid = (own < TA * L) & (own_anchor < A)
    own_places = ((own_anchor.to(tl.int64) * L + own % L) * K + head) * D
    own_mask = own_valid[:, None] & real[None, :]
    own_key = tl.load(kb_ptr + own_places[:, None] + dims[None, :], mask=own_mask, other=0.0)
    own_value = tl.load(vb_ptr + own_places[:, None] + dims[None, :], mask=own_mask, other=0.0)
    own_scores = _product(query, tl.trans(own_key), UPCAST) * scale
    own_scores = tl.where((anchor[:, None] == own_anchor[None, :]) & own_valid[None, :], own_scores, -1.0e30)
    highest = tl.max(own_scores, axis=1)
    own_weights = tl.exp(own_scores - highest[:, None])
    total = tl.sum(own_weights, axis=1)
    taken = _product(own_weights.to(own_value.dtype), own_value, UPCAST)

    row = tl.load(rows_ptr + first).to(tl.int32)
    last_row = tl.load(rows_ptr + last).to(tl.int32)
    while row <= last_row:
        here = valid & (anchor_rows == row)
        low = tl.min(tl.where(here, starts, 1 << 30))
        if HAS_WINDOW:
            low = tl.maximum(low, tl.min(tl.where(here, anchors, 1 << 30)) - WINDOW + 1)
        high = tl.max(tl.where(here, anchors, 0))
        for begin in range(low, high, BN):
            columns = begin + tl.arange(0, BN)
            key_places = ((row.to(tl.int64) * S + columns) * K + head) * D
            key_mask = (columns < high)[:, None] & real[None, :]
            key = tl.load(kc_ptr + key_places[:, None] + dims[None, :], mask=key_mask, other=0.0)
            value = tl.load(vc_ptr + key_places[:, None] + dims[None, :], mask=key_mask, other=0.0)
            scores = _product(query, tl.trans(key), UPCAST) * scale
            seen = _seen(columns, row, anchor_rows, starts, anchors, slot, valid, WINDOW, HAS_WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
            above = tl.maximum(highest, tl.max(scores, axis=1))
            shrink = tl.exp(highest - above)
            weights = tl.exp(scores - above[:, None])
            total = total * shrink + tl.sum(weights, axis=1)
            taken = taken * shrink[:, None] + _product(weights.to(value.dtype), value, UPCAST)
            highest = above
        row += 1
    taken = taken / total[:, None]
    mask = valid[:, None] & real[None, :]
    tl.store(out_ptr + places[:, None] + dims[None, :], taken.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + places // D, highest + tl.log(total), mask=valid)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=PLACES)
def backward_block_kernel(
    q_ptr, kc_ptr, vc_ptr, kb_ptr, vb_ptr, grad_ptr, lse_ptr, delta_ptr, rows_ptr, starts_ptr, anchors_ptr,
    grad_q_ptr, grad_kb_ptr, grad_vb_ptr, scale, A, S, WINDOW,
    K: tl.constexpr, G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, TA: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    BD: tl.constexpr, BN: tl.constexpr, HAS_WINDOW: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile's queries and of its own keys and values. delta: sum of output x its gradient a query."""
    first, head = tl.program_id(0) * TA, tl.program_id(1)
    last = tl.minimum(first + TA, A) - 1
    anchor, group, slot, valid = _tile(first, A, L, G, TA, R)
    dims = tl.arange(0, BD)
    real = dims < D
    places = ((anchor.to(tl.int64) * L + slot) * (K * G) + head * G + group) * D
    mask = valid[:, None] & real[None, :]
    query = tl.load(q_ptr + places[:, None] + dims[None, :], mask=mask, other=0.0)
    grad = tl.load(grad_ptr + places[:, None] + dims[None, :], mask=mask, other=0.0)
    lse = tl.load(lse_ptr + places // D, mask=valid, other=0.0)
    delta = tl.load(delta_ptr + places // D, mask=valid, other=0.0)
    starts = tl.load(starts_ptr + anchor, mask=valid, other=1 << 30).to(tl.int32)
    anchors = tl.load(anchors_ptr + anchor, mask=valid, other=0).to(tl.int32)
    anchor_rows = tl.load(rows_ptr + anchor, mask=valid, other=-1).to(tl.int32)

    own = tl.arange(0, C)
    own_anchor = first + own // L
    own_valid = (own < TA * L) & (own_anchor < A)
    own_places = ((own_anchor.to(tl.int64) * L + own % L) * K + head) * D
    own_mask = own_valid[:, None] & real[None, :]
    own_key = tl.load(kb_ptr + own_places[:, None] + dims[None, :], mask=own_mask, other=0.0)
    own_value = tl.load(vb_ptr + own_places[:, None] + dims[None, :], mask=own_mask, other=0.0)
    own_scores = _product(query, tl.trans(own_key), UPCAST) * scale - lse[:, None]
    own_seen = (anchor[:, None] == own_anchor[None, :]) & own_valid[None, :] & valid[:, None]
    own_weights = tl.exp(tl.where(own_seen, own_scores, float("-inf")))
    own_change = own_weights * (_product(grad, tl.trans(own_value), UPCAST) - delta[:, None])
    grad_value = _product(tl.trans(own_weights.to(grad.dtype)), grad, UPCAST)
    grad_key = _product(tl.trans(own_change.to(query.dtype)), query, UPCAST) * scale
    tl.store(
        grad_vb_ptr + own_places[:, None] + dims[None, :],
        grad_value.to(grad_vb_ptr.dtype.element_ty),
        mask=own_mask,
    )
    tl.store(
        grad_kb_ptr + own_places[:, None] + dims[None, :],
        grad_key.to(grad_kb_ptr.dtype.element_ty),
        mask=own_mask,
    )
    grad_query = _product(own_change.to(own_key.dtype), own_key, UPCAST)

    row = tl.load(rows_ptr + first).to(tl.int32)
    last_row = tl.load(rows_ptr + last).to(tl.int32)
    while row <= last_row:
        here = valid & (anchor_rows == row)
        low = tl.min(tl.where(here, starts, 1 << 30))
        if HAS_WINDOW:
            low = tl.maximum(low, tl.min(tl.where(here, anchors, 1 << 30)) - WINDOW + 1)
        high = tl.max(tl.where(here, anchors, 0))
        for begin in range(low, high, BN):
            columns = begin + tl.arange(0, BN)
            key_places = ((row.to(tl.int64) * S + columns) * K + head) * D
            key_mask = (columns < high)[:, None] & real[None, :]
            key = tl.load(kc_ptr + key_places[:, None] + dims[None, :], mask=key_mask, other=0.0)
            value = tl.load(vc_ptr + key_places[:, None] + dims[None, :], mask=key_mask, other=0.0)
            scores = _product(query, tl.trans(key), UPCAST) * scale - lse[:, None]
            seen = _seen(columns, row, anchor_rows, starts, anchors, slot, valid, WINDOW, HAS_WINDOW)
            weights = tl.exp(tl.where(seen, scores, float("-inf")))
            change = weights * (_product(grad, tl.trans(value), UPCAST) - delta[:, None])
            grad_query += _product(change.to(key.dtype), key, UPCAST)
        row += 1
    tl.store(
        grad_q_ptr + places[:, None] + dims[None, :],
        (grad_query * scale).to(grad_q_ptr.dtype.element_ty),
        mask=mask,
    )


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=PLACES)
def backward_context_kernel(
    q_ptr, kc_ptr, vc_ptr, grad_ptr, lse_ptr, delta_ptr, rows_ptr, starts_ptr, anchors_ptr, from_ptr, to_ptr,
    grad_kc_ptr, grad_vc_ptr, scale, A, S, WINDOW,
    K: tl.constexpr, G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, TA: tl.constexpr, R: tl.constexpr,
    BD: tl.constexpr, BN: tl.constexpr, HAS_WINDOW: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Gradients of BN context keys and values of one row and head. from, to [B, stretches]: anchors that may see them."""
    stretch, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = stretch * BN + tl.arange(0, BN)
    dims = tl.arange(0, BD)
    real = dims < D
    key_places = ((row.to(tl.int64) * S + columns) * K + head) * D
    key_mask = (columns < S)[:, None] & real[None, :]
    key = tl.load(kc_ptr + key_places[:, None] + dims[None, :], mask=key_mask, other=0.0)
    value = tl.load(vc_ptr + key_places[:, None] + dims[None, :], mask=key_mask, other=0.0)
    grad_key = tl.zeros((BN, BD), tl.float32)
    grad_value = tl.zeros((BN, BD), tl.float32)
    begin = tl.load(from_ptr + row * tl.num_programs(0) + stretch).to(tl.int32)
    end = tl.load(to_ptr + row * tl.num_programs(0) + stretch).to(tl.int32)
    for first in range(begin, end, TA):
        anchor, group, slot, valid = _tile(first, end, L, G, TA, R)
        places = ((anchor.to(tl.int64) * L + slot) * (K * G) + head * G + group) * D
        mask = valid[:, None] & real[None, :]
        query = tl.load(q_ptr + places[:, None] + dims[None, :], mask=mask, other=0.0)
        grad = tl.load(grad_ptr + places[:, None] + dims[None, :], mask=mask, other=0.0)
        lse = tl.load(lse_ptr + places // D, mask=valid, other=0.0)
        delta = tl.load(delta_ptr + places // D, mask=valid, other=0.0)
        starts = tl.load(starts_ptr + anchor, mask=valid, other=1 << 30).to(tl.int32)
        anchors = tl.load(anchors_ptr + anchor, mask=valid, other=0).to(tl.int32)
        anchor_rows = tl.load(rows_ptr + anchor, mask=valid, other=-1).to(tl.int32)
        scores = _product(query, tl.trans(key), UPCAST) * scale - lse[:, None]
        seen = _seen(columns, row, anchor_rows, starts, anchors, slot, valid, WINDOW, HAS_WINDOW)
        weights = tl.exp(tl.where(seen, scores, float("-inf")))
        change = weights * (_product(grad, tl.trans(value), UPCAST) - delta[:, None])
        grad_value += _product(tl.trans(weights.to(grad.dtype)), grad, UPCAST)
        grad_key += _product(tl.trans(change.to(query.dtype)), query, UPCAST)
    tl.store(
        grad_vc_ptr + key_places[:, None] + dims[None, :],
        grad_value.to(grad_vc_ptr.dtype.element_ty),
        mask=key_mask,
    )
    tl.store(
        grad_kc_ptr + key_places[:, None] + dims[None, :],
        (grad_key * scale).to(grad_kc_ptr.dtype.element_ty),
        mask=key_mask,
    )


def anchor_attention(
    query_ALND: Tensor,
    key_context_BSKD: Tensor,
    value_context_BSKD: Tensor,
    key_block_ALKD: Tensor,
    value_block_ALKD: Tensor,
    rows_A: Tensor,
    starts_A: Tensor,
    anchors_A: Tensor,
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """As `dflash.kernels.anchor_attention.anchor_attention`; anchors must be sorted by (row, position)."""
    tensors = (query_ALND, key_context_BSKD, value_context_BSKD, key_block_ALKD, value_block_ALKD)
    out: Tensor = _AnchorAttention.apply(*tensors, rows_A, starts_A, anchors_A, scale, window)
    return out


class _AnchorAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, query, key_context, value_context, key_block, value_block, rows, starts, anchors, scale, window
    ):  # type: ignore[no-untyped-def]
        tensors = [each.contiguous() for each in (query, key_context, value_context, key_block, value_block)]
        places = [each.contiguous() for each in (rows, starts, anchors)]
        out = torch.empty_like(tensors[0])
        lse_ALN = query.new_empty(query.shape[:3], dtype=torch.float32)
        sizes, plain = _sizes(query, key_block), _plain(query, key_context, scale, window)
        if len(rows):
            grid = (triton.cdiv(len(rows), sizes["TA"]), sizes["K"])
            options = _options(query, window, sizes)
            forward_kernel[grid](*tensors, out, lse_ALN, *places, *plain, **sizes, **options)
        ctx.save_for_backward(*tensors, *places, out, lse_ALN)
        ctx.scale, ctx.window = scale, window
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):  # type: ignore[no-untyped-def]
        *tensors, rows, starts, anchors, out, lse_ALN = ctx.saved_tensors
        query, key_context, value_context, key_block, _ = tensors
        grad_out = grad_out.contiguous()
        delta_ALN = (grad_out.float() * out.float()).sum(dim=-1)
        grads = [torch.empty_like(each) for each in tensors]
        sizes, plain = _sizes(query, key_block), _plain(query, key_context, ctx.scale, ctx.window)
        places, options = (rows, starts, anchors), _options(query, ctx.window, sizes)
        if len(rows):
            grid = (triton.cdiv(len(rows), sizes["TA"]), sizes["K"])
            sums = (grad_out, lse_ALN, delta_ALN)
            backward_block_kernel[grid](
                *tensors,
                *sums,
                *places,
                grads[0],
                *grads[3:],
                *plain,
                **backward_block_sizes(sizes),
                **options,
            )
        num_rows, width = key_context.shape[:2]
        if num_rows and width:
            sizes = backward_context_sizes(sizes)
            ends = _anchors_of_stretches(rows, starts, anchors, num_rows, width, sizes, ctx.window)
            grid = (triton.cdiv(width, sizes["BN"]), sizes["K"], num_rows)
            held = {name: size for name, size in sizes.items() if name != "C"}
            arguments = (
                query,
                key_context,
                value_context,
                grad_out,
                lse_ALN,
                delta_ALN,
                *places,
                *ends,
                *grads[1:3],
                *plain,
            )
            options["num_warps"] = num_warps(sizes, of_context=True)
            backward_context_kernel[grid](*arguments, **held, **options)
        return *grads, None, None, None, None, None


def _sizes(query: Tensor, key_block: Tensor) -> dict[str, int]:
    return tile_sizes(query.shape[2], key_block.shape[2], query.shape[1], query.shape[3])


def _plain(
    query: Tensor, key_context: Tensor, scale: float, window: int | None
) -> tuple[float, int, int, int]:
    return float(scale), len(query), key_context.shape[1], window or 0


def _options(query: Tensor, window: int | None, sizes: dict[str, int]) -> dict[str, int | bool]:
    """A tensor on the CPU can only mean the interpreter."""
    return {
        "HAS_WINDOW": window is not None,
        "UPCAST": not query.is_cuda,
        "num_warps": num_warps(sizes),
        "num_stages": NUM_STAGES,
    }


def _anchors_of_stretches(
    rows_A: Tensor,
    starts_A: Tensor,
    anchors_A: Tensor,
    num_rows: int,
    width: int,
    sizes: dict[str, int],
    window: int | None,
) -> tuple[Tensor, Tensor]:
    """First and one past the last anchor that may see each stretch of BN keys, int32 [B, stretches], found on the device.

    Row and position, and row and start, are nondecreasing over the anchors, so they can be searched as one number.
    """
    device = rows_A.device
    span = 2 * width + sizes["L"] + 2
    begins = torch.arange(0, width, sizes["BN"], device=device)
    bases = torch.arange(num_rows, device=device)[:, None] * span
    by_position, by_start = rows_A * span + anchors_A, rows_A * span + starts_A
    first = torch.searchsorted(by_position, bases + begins, right=True)
    last = torch.searchsorted(by_start, bases + begins + sizes["BN"])
    if window is not None:
        furthest = (begins + sizes["BN"] - 1 + window).clamp(max=span - 1)
        last = torch.minimum(last, torch.searchsorted(by_position, bases + furthest))
    return first.int(), torch.maximum(first, last).int()
