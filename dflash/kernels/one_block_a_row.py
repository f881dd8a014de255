"""Block attention where every row has exactly one block, as in decoding: all rows in one product."""

import torch
from torch import Tensor
from torch.nn import functional


def applies(rows_A: Tensor, num_rows: int) -> bool:
    """Whether each of several rows has one block. A row alone gains nothing."""
    return 1 < len(rows_A) == num_rows and bool(
        (rows_A == torch.arange(num_rows, device=rows_A.device)).all()
    )


def row_attention(
    query_ALND: Tensor,
    key_context_BSKD: Tensor,
    value_context_BSKD: Tensor,
    key_block_ALKD: Tensor,
    value_block_ALKD: Tensor,
    starts_A: Tensor,
    anchors_A: Tensor,
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """As `dflash.kernels.anchor_attention.anchor_attention`, with A = B and rows_A = 0 .. B - 1.

    Here a mask costs little: [B, L, S + L] of a single block a row. Computed in float32 (float64 for float64 inputs).
    """
    dtype = torch.float64 if query_ALND.dtype == torch.float64 else torch.float32
    block_size, num_keys = key_block_ALKD.shape[1:3]
    keys, values = (
        torch.cat(pair, dim=1).to(dtype).transpose(1, 2)
        for pair in ((key_context_BSKD, key_block_ALKD), (value_context_BSKD, value_block_ALKD))
    )
    # [B, K, queries that share a key head x L, D]: no key is repeated
    query = query_ALND.to(dtype).unflatten(2, (num_keys, -1)).permute(0, 2, 3, 1, 4)
    seen_BLJ = _visible(key_context_BSKD.shape[1], block_size, starts_A, anchors_A, window)
    mask = seen_BLJ.repeat(1, query.shape[2], 1)[:, None]
    taken = functional.scaled_dot_product_attention(query.flatten(2, 3), keys, values, mask, scale=scale)
    return taken.view(query.shape).permute(0, 3, 1, 2, 4).flatten(2, 3).to(query_ALND.dtype)


def _visible(
    context: int, block_size: int, starts_A: Tensor, anchors_A: Tensor, window: int | None
) -> Tensor:
    """Columns that each slot sees, context first, then the own block: bool [A, L, S + L]."""
    columns = torch.arange(context, device=anchors_A.device)
    seen = (columns >= starts_A[:, None]) & (columns < anchors_A[:, None])
    seen = seen[:, None].expand(-1, block_size, -1)
    if window is not None:
        slots = anchors_A[:, None] + torch.arange(block_size, device=anchors_A.device)
        seen = seen & (columns > slots[..., None] - window)
    return torch.cat([seen, seen.new_ones(len(anchors_A), block_size, block_size)], dim=-1)
