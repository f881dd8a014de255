"""Attention of draft blocks to the context before their anchor and to themselves (arXiv:2602.06036)."""

from typing import Literal

from torch import Tensor

from dflash.kernels import one_block_a_row, reference_attention

Backend = Literal["reference", "triton"]


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
    backend: Backend,
) -> Tensor:
    """What every slot takes in. Differentiable in the first five arguments; no mask is built, nor keys repeated.

    Slot k of anchor a stands at position anchors_A[a] + k. It sees the context of row rows_A[a] at positions p with
    starts_A[a] <= p < anchors_A[a], with a window only those with p > anchors_A[a] + k - window, and all slots of its
    own block. One softmax runs over both.

    Args:
        query_ALND: heads N a multiple of K; heads n x K .. share key head n. All floating tensors have one type.
        rows_A, starts_A, anchors_A: int64, sorted by (row, position), starts not decreasing inside a row. A may be 0.
        scale: factor of the scores, usually D ** -0.5.
        window: positions back from a slot that it sees, itself included; None for all.
        backend: `triton` needs a GPU, and has not run on one yet.

    Returns:
        [A, L, N, D], in the type of the queries.

    Raises:
        ValueError: shapes that don't fit together, or Triton where it cannot run.
    """
    _check_shapes(
        query_ALND,
        key_context_BSKD,
        value_context_BSKD,
        key_block_ALKD,
        value_block_ALKD,
        rows_A,
        starts_A,
        anchors_A,
    )
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; a slot sees at least itself: give 1 or more, or None")
    places = (rows_A, starts_A, anchors_A)
    tensors = (query_ALND, key_context_BSKD, value_context_BSKD, key_block_ALKD, value_block_ALKD)
    if backend == "triton":
        require_gpu(query_ALND)
        from dflash.kernels import triton_attention

        return triton_attention.anchor_attention(*tensors, *places, scale=scale, window=window)
    if one_block_a_row.applies(rows_A, key_context_BSKD.shape[0]):
        return one_block_a_row.row_attention(*tensors, starts_A, anchors_A, scale=scale, window=window)
    return reference_attention.anchor_attention(*tensors, *places, scale=scale, window=window)


def require_gpu(tensor: Tensor) -> None:
    """Refuse Triton for a tensor that it cannot work on."""
    if not tensor.is_cuda:
        raise ValueError(
            f"Triton kernels were asked for, but the tensors are on {tensor.device}: they need a CUDA device. "
            "Set training.kernels to auto or reference"
        )


def _check_shapes(
    query: Tensor,
    key_context: Tensor,
    value_context: Tensor,
    key_block: Tensor,
    value_block: Tensor,
    *places: Tensor,
) -> None:
    num_anchors, block_size, num_heads, head_size = query.shape
    num_keys = key_block.shape[2]
    if num_heads % num_keys:
        raise ValueError(f"{num_heads} query heads cannot share {num_keys} key heads evenly")
    expected = (num_anchors, block_size, num_keys, head_size)
    for name, tensor in (("key_block_ALKD", key_block), ("value_block_ALKD", value_block)):
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)}; with queries {tuple(query.shape)} it must be {expected}"
            )
    for name, tensor in (("key_context_BSKD", key_context), ("value_context_BSKD", value_context)):
        if tensor.ndim != 4 or tuple(tensor.shape) != (*key_context.shape[:2], num_keys, head_size):
            raise ValueError(f"{name} is {tuple(tensor.shape)}; it must be (B, S, {num_keys}, {head_size})")
    for name, place in zip(("rows_A", "starts_A", "anchors_A"), places, strict=True):
        if tuple(place.shape) != (num_anchors,):
            raise ValueError(f"{name} is {tuple(place.shape)}; there are {num_anchors} anchors")
