"""Block attention in plain PyTorch: what runs on CPUs, and what the Triton kernel is held against.

Anchors of one document are taken in chunks, sorted by position, so that a chunk multiplies only the context before its
last anchor; only the columns at its edges need a mask. Context and own block share one softmax: the larger of both
maxima is subtracted on either side, and sums and products add up. The backward pass computes the scores again, as in
FlashAttention-2 (arXiv:2307.08691), so that what is kept is the output and one log-sum-exp a query.

Products and softmax are float32 (float64 for float64 inputs): CPUs without matrix units multiply bfloat16 no faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

TILE_BYTES = 8 << 20
"""Bytes of a tile of scores at most, unless one anchor alone needs more. Fits in caches, and bounds memory."""
TILE_QUERIES = 512
"""Queries of a tile that products need to be efficient; more than that only multiplies columns that masks undo."""
TILE_SCORES = 1 << 18
"""Scores of a tile below which starting its products costs more than the columns that a smaller one would spare."""


@dataclass(frozen=True)
class _Chunk:
    """Anchors first .. last - 1, all of one row and document, and the context [low, high) that any of them sees."""

    first: int
    last: int
    row: int
    low: int
    high: int


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
    """As `dflash.kernels.anchor_attention.anchor_attention`."""
    tensors = (query_ALND, key_context_BSKD, value_context_BSKD, key_block_ALKD, value_block_ALKD)
    out: Tensor = _AnchorAttention.apply(*tensors, rows_A, starts_A, anchors_A, scale, window)
    return out


class _AnchorAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, query, key_context, value_context, key_block, value_block, rows, starts, anchors, scale, window
    ):
        tiles = _Tiles(query, key_context, value_context, key_block, value_block, scale)
        chunks = _chunks(rows, starts, anchors, window, query.shape[1], tiles.group, query.shape[2])
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        lse_ALN = query.new_empty(query.shape[:3], dtype=tiles.dtype)
        for chunk in chunks:
            edges = _edges(chunk, anchors, window, query.shape[1])
            for heads in tiles.head_groups(chunk):
                _forward_tile(tiles, chunk, heads, edges, out, lse_ALN)
        ctx.save_for_backward(
            query, key_context, value_context, key_block, value_block, anchors, out, lse_ALN
        )
        ctx.chunks, ctx.scale, ctx.window = chunks, scale, window
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):  # type: ignore[no-untyped-def]
        query, key_context, value_context, key_block, value_block, anchors, out, lse_ALN = ctx.saved_tensors
        tiles = _Tiles(query, key_context, value_context, key_block, value_block, ctx.scale)
        delta_ALN = (grad_out.to(tiles.dtype) * out).sum(dim=-1)
        grads = _Gradients(query, key_context, key_block, tiles.dtype)
        for chunk in ctx.chunks:
            edges = _edges(chunk, anchors, ctx.window, query.shape[1])
            for heads in tiles.head_groups(chunk):
                _backward_tile(tiles, chunk, heads, edges, grad_out, lse_ALN, delta_ALN, grads)
        return *grads.like(query), None, None, None, None, None


class _Tiles:
    """The inputs cut to tiles [k, R, D]: k key heads; R = anchors x group x L queries that share them, in this order."""

    def __init__(
        self,
        query: Tensor,
        key_context: Tensor,
        value_context: Tensor,
        key_block: Tensor,
        value_block: Tensor,
        scale: float,
    ) -> None:
        self.query, self.key_block, self.value_block = query, key_block, value_block
        self.key_context, self.value_context = key_context, value_context
        self.scale = scale
        self.num_keys = key_block.shape[2]
        self.group = query.shape[2] // self.num_keys
        self.dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        self._row = -1
        self._scratch: dict[str, Tensor] = {}

    def head_groups(self, chunk: _Chunk) -> Iterator[slice]:
        """Key heads at a time: as many as fill a tile."""
        num_bytes = self.queries(chunk) * max(1, chunk.high - chunk.low) * self.dtype.itemsize
        step = max(1, min(self.num_keys, TILE_BYTES // num_bytes))
        for first in range(0, self.num_keys, step):
            yield slice(first, min(first + step, self.num_keys))

    def queries(self, chunk: _Chunk) -> int:
        """R of a chunk."""
        return (chunk.last - chunk.first) * self.group * self.query.shape[1]

    def of_queries(self, tensor_ALND: Tensor, chunk: _Chunk, heads: slice) -> Tensor:
        """[k, R, D] of a tensor shaped as the queries."""
        cut = _grouped(tensor_ALND[chunk.first : chunk.last], self.group)[heads]
        cut = cut.to(self.dtype, memory_format=torch.contiguous_format)
        return cut.reshape(heads.stop - heads.start, self.queries(chunk), tensor_ALND.shape[-1]).contiguous()

    def scaled_queries(self, chunk: _Chunk, heads: slice) -> Tensor:
        """[k, R, D], times the scale."""
        return self.of_queries(self.query, chunk, heads) * self.scale

    def of_scalars(self, tensor_ALN: Tensor, chunk: _Chunk, heads: slice) -> Tensor:
        """[k, R, 1] of a number a query."""
        return self.of_queries(tensor_ALN.unsqueeze(-1), chunk, heads)

    def context(self, chunk: _Chunk, heads: slice) -> tuple[Tensor, Tensor]:
        """Keys and values [k, P, D] that the chunk sees. A row is cast once, when its first chunk comes."""
        if chunk.row != self._row:
            self._row = chunk.row
            self._keys = self.key_context[chunk.row].to(self.dtype).transpose(0, 1)
            self._values = self.value_context[chunk.row].to(self.dtype).transpose(0, 1)
        return self._keys[heads, chunk.low : chunk.high], self._values[heads, chunk.low : chunk.high]

    def block(self, tensor_ALKD: Tensor, chunk: _Chunk, heads: slice) -> Tensor:
        """Keys or values of the blocks, [k x anchors, L, D]."""
        return (
            tensor_ALKD[chunk.first : chunk.last, :, heads].to(self.dtype).permute(2, 0, 1, 3).flatten(0, 1)
        )

    def scratch(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Memory that the next tile uses again: fresh pages would cost more than the products."""
        size = 1
        for length in shape:
            size *= length
        kept = self._scratch.get(name)
        if kept is None or kept.numel() < size:
            kept = self._scratch[name] = self.query.new_empty(size, dtype=self.dtype)
        return kept[:size].view(shape)


class _Gradients:
    """Gradients of all inputs; those of the context are sums over chunks and kept as [B, K, S, D]."""

    def __init__(self, query: Tensor, key_context: Tensor, key_block: Tensor, dtype: torch.dtype) -> None:
        self.query = torch.empty_like(query, memory_format=torch.contiguous_format)
        self.key_block = torch.empty_like(key_block, memory_format=torch.contiguous_format)
        self.value_block = torch.empty_like(self.key_block)
        self.key_context = key_context.new_zeros(key_context.shape, dtype=dtype).transpose(1, 2)
        self.value_context = torch.zeros_like(self.key_context)

    def like(self, query: Tensor) -> tuple[Tensor, ...]:
        """In the order of the inputs, in their type."""
        context = (each.transpose(1, 2).to(query.dtype) for each in (self.key_context, self.value_context))
        return self.query, *context, self.key_block, self.value_block


def _grouped(tensor_ALND: Tensor, group: int) -> Tensor:
    """[A, L, N, D] seen as [K, A, G, L, D]: a key head, then the anchors, then the queries that share the head."""
    return tensor_ALND.unflatten(2, (-1, group)).permute(2, 0, 3, 1, 4)


def _chunks(
    rows_A: Tensor,
    starts_A: Tensor,
    anchors_A: Tensor,
    window: int | None,
    block_size: int,
    group: int,
    num_heads: int,
) -> list[_Chunk]:
    """Runs of anchors of one document, cut so that a tile is efficient and few of its columns are masked."""
    rows, starts, anchors = rows_A.tolist(), starts_A.tolist(), anchors_A.tolist()
    chunks: list[_Chunk] = []
    first = 0
    while first < len(rows):
        end = first
        while end < len(rows) and rows[end] == rows[first] and starts[end] == starts[first]:
            end += 1
        seen = max(1, max(anchors[first:end]) - starts[first])
        few = max(64, TILE_QUERIES * (end - first) // 512)
        worthwhile = TILE_SCORES // (seen * num_heads * block_size)
        size = max(1, worthwhile, min(few, TILE_QUERIES, TILE_BYTES // (4 * seen)) // (block_size * group))
        for begin in range(first, end, size):
            chosen = anchors[begin : min(begin + size, end)]
            low = starts[first] if window is None else max(starts[first], min(chosen) - window + 1)
            chunks.append(_Chunk(begin, begin + len(chosen), rows[first], low, max(low, *chosen)))
        first = end
    return chunks


@dataclass(frozen=True)
class _Edges:
    """What single queries of a chunk may not see: columns from `right` on, [A, 1, 1, right edge], and, with a window,
    columns before the end of `left`, [A, 1, L, left edge]. True is hidden."""

    right: Tensor
    left: Tensor | None

    def hide(self, scores: Tensor, group: int, block_size: int) -> None:
        """Set hidden scores [k, R, P] to minus infinity."""
        view = scores.view(scores.shape[0], -1, group, block_size, scores.shape[-1])
        if self.right.shape[-1]:
            view[..., -self.right.shape[-1] :].masked_fill_(self.right, float("-inf"))
        if self.left is not None and self.left.shape[-1]:
            view[..., : self.left.shape[-1]].masked_fill_(self.left, float("-inf"))


def _edges(chunk: _Chunk, anchors_A: Tensor, window: int | None, block_size: int) -> _Edges:
    anchors = anchors_A[chunk.first : chunk.last, None, None, None]
    device = anchors_A.device
    right = (
        torch.arange(max(chunk.low, min(int(anchors.min()), chunk.high)), chunk.high, device=device)
        >= anchors
    )
    if window is None:
        return _Edges(right, None)
    slots = torch.arange(block_size, device=device)[:, None]
    end = min(chunk.high, max(chunk.low, int(anchors.max()) + block_size - window))
    return _Edges(right, torch.arange(chunk.low, end, device=device) <= anchors + slots - window)


def _forward_tile(
    tiles: _Tiles, chunk: _Chunk, heads: slice, edges: _Edges, out: Tensor, lse_ALN: Tensor
) -> None:
    block_size = tiles.query.shape[1]
    query = tiles.scaled_queries(chunk, heads)
    key, value = tiles.context(chunk, heads)
    blocked = (-1, tiles.group * block_size)
    own = torch.bmm(
        query.view(*blocked, query.shape[-1]), tiles.block(tiles.key_block, chunk, heads).transpose(1, 2)
    )
    own = own.view(*query.shape[:2], block_size)
    highest = own.amax(dim=-1, keepdim=True)
    scores = tiles.scratch("scores", (*query.shape[:2], key.shape[1]))
    if key.shape[1]:
        torch.bmm(query, key.transpose(1, 2), out=scores)
        edges.hide(scores, tiles.group, block_size)
        highest = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
    own.sub_(highest).exp_()
    scores.sub_(highest).exp_()
    total = own.sum(dim=-1, keepdim=True) + scores.sum(dim=-1, keepdim=True)
    taken = torch.bmm(scores, value, out=tiles.scratch("taken", query.shape))
    taken.view(*blocked, query.shape[-1]).baddbmm_(
        own.view(*blocked, block_size), tiles.block(tiles.value_block, chunk, heads)
    )
    _write(out, taken.div_(total), chunk, heads, tiles.group)
    _write(lse_ALN.unsqueeze(-1), total.log_().add_(highest), chunk, heads, tiles.group)


def _backward_tile(
    tiles: _Tiles,
    chunk: _Chunk,
    heads: slice,
    edges: _Edges,
    grad_out: Tensor,
    lse_ALN: Tensor,
    delta_ALN: Tensor,
    grads: _Gradients,
) -> None:
    block_size = tiles.query.shape[1]
    query, grad = tiles.scaled_queries(chunk, heads), tiles.of_queries(grad_out, chunk, heads)
    lse, delta = tiles.of_scalars(lse_ALN, chunk, heads), tiles.of_scalars(delta_ALN, chunk, heads)
    key, value = tiles.context(chunk, heads)
    key_block, value_block = (
        tiles.block(tiles.key_block, chunk, heads),
        tiles.block(tiles.value_block, chunk, heads),
    )

    def blocked(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1, tiles.group * block_size, tensor.shape[-1])

    own = torch.bmm(blocked(query), key_block.transpose(1, 2)).sub_(blocked(lse)).exp_()
    own_grad = torch.bmm(blocked(grad), value_block.transpose(1, 2)).sub_(blocked(delta)).mul_(own)
    _write_block(grads.value_block, torch.bmm(own.transpose(1, 2), blocked(grad)), chunk, heads)
    _write_block(grads.key_block, torch.bmm(own_grad.transpose(1, 2), blocked(query)), chunk, heads)
    grad_query = torch.bmm(own_grad, key_block).view(query.shape)
    if key.shape[1]:
        shape = (*query.shape[:2], key.shape[1])
        weights = torch.bmm(query, key.transpose(1, 2), out=tiles.scratch("scores", shape))
        edges.hide(weights, tiles.group, block_size)
        weights.sub_(lse).exp_()
        seen = (chunk.row, heads, slice(chunk.low, chunk.high))
        summed = tiles.scratch("summed", key.shape)
        grads.value_context[seen] += torch.bmm(weights.transpose(1, 2), grad, out=summed)
        score_grads = (
            torch.bmm(grad, value.transpose(1, 2), out=tiles.scratch("score_grads", shape))
            .sub_(delta)
            .mul_(weights)
        )
        grads.key_context[seen] += torch.bmm(score_grads.transpose(1, 2), query, out=summed)
        grad_query.baddbmm_(score_grads, key)
    _write(grads.query, grad_query.mul_(tiles.scale), chunk, heads, tiles.group)


def _write(target_ALND: Tensor, tile: Tensor, chunk: _Chunk, heads: slice, group: int) -> None:
    """Put a tile [k, R, D] back to its place."""
    place = _grouped(target_ALND[chunk.first : chunk.last], group)[heads]
    place.copy_(tile.view(place.shape))


def _write_block(target_ALKD: Tensor, tile: Tensor, chunk: _Chunk, heads: slice) -> None:
    """Put a tile [k x anchors, L, D] of the blocks' keys or values back to its place."""
    place = target_ALKD[chunk.first : chunk.last, :, heads].permute(2, 0, 1, 3)
    place.copy_(tile.view(place.shape))
