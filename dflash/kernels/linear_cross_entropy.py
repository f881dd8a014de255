"""Losses over the vocabulary from hidden states and a frozen head; no tensor of rows x vocabulary exists.

All are differentiable in the drafter's hidden states alone. Logits are hidden @ head^T + bias, then
softcap * tanh(logits / softcap) where a soft cap is given.
"""

from torch import Tensor

from dflash.kernels import reference_loss
from dflash.kernels.anchor_attention import Backend, require_gpu


def linear_cross_entropy(
    hidden_MH: Tensor,
    head_VH: Tensor,
    labels_M: Tensor,
    *,
    bias_V: Tensor | None = None,
    softcap: float | None = None,
    backend: Backend,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of every row with its label.

    Args:
        labels_M: int64 in [0, V). M may be 0.
        softcap: positive, or None.
        backend: `triton` needs a GPU, and has not run on one yet.

    Returns:
        losses_M, float32 (float64 for float64 hidden states), and correct_M, bool: no logit exceeds the label's.

    Raises:
        ValueError: shapes or types that don't fit together, or Triton where it cannot run.
    """
    _check(hidden_MH, head_VH, bias_V, softcap)
    if tuple(labels_M.shape) != (len(hidden_MH),):
        raise ValueError(f"labels_M is {tuple(labels_M.shape)}; there are {len(hidden_MH)} rows")
    if backend == "triton":
        require_gpu(hidden_MH)
        from dflash.kernels import triton_loss

        return triton_loss.linear_cross_entropy(hidden_MH, head_VH, labels_M, bias_V=bias_V, softcap=softcap)
    return reference_loss.linear_cross_entropy(hidden_MH, head_VH, labels_M, bias_V=bias_V, softcap=softcap)


def linear_kl(
    hidden_MH: Tensor,
    head_VH: Tensor,
    target_hidden_MH: Tensor,
    *,
    bias_V: Tensor | None = None,
    softcap: float | None = None,
    backend: Backend,
) -> tuple[Tensor, Tensor]:
    """Kullback-Leibler divergence KL(target || drafter) of every row, both softmaxes made with the same head.

    Args:
        target_hidden_MH: the target's states after its final norm, in the type of `hidden_MH`.

    Returns:
        losses_M, float32, and agree_M, bool: no logit of the drafter exceeds that of the target's most likely token.

    Raises:
        ValueError: as `linear_cross_entropy`.
    """
    _check(hidden_MH, head_VH, bias_V, softcap)
    if target_hidden_MH.shape != hidden_MH.shape:
        raise ValueError(
            f"target_hidden_MH is {tuple(target_hidden_MH.shape)}; it must be {tuple(hidden_MH.shape)}, as hidden_MH"
        )
    if backend == "triton":
        require_gpu(hidden_MH)
        from dflash.kernels import triton_loss

        return triton_loss.linear_kl(hidden_MH, head_VH, target_hidden_MH, bias_V=bias_V, softcap=softcap)
    return reference_loss.linear_kl(hidden_MH, head_VH, target_hidden_MH, bias_V=bias_V, softcap=softcap)


def linear_argmax(
    hidden_MH: Tensor,
    head_VH: Tensor,
    *,
    bias_V: Tensor | None = None,
    softcap: float | None = None,
    backend: Backend,
) -> Tensor:
    """The most likely token of every row, int64 [M]; the first of equals. No gradient.

    A product and a maximum a tile: plain PyTorch on every device.

    Raises:
        ValueError: as `linear_cross_entropy`.
    """
    _check(hidden_MH, head_VH, bias_V, softcap)
    if backend == "triton":
        require_gpu(hidden_MH)
    return reference_loss.linear_argmax(hidden_MH, head_VH, bias_V=bias_V)


def _check(hidden: Tensor, head: Tensor, bias: Tensor | None, softcap: float | None) -> None:
    if hidden.ndim != 2 or head.ndim != 2 or hidden.shape[1] != head.shape[1]:
        raise ValueError(
            f"hidden states {tuple(hidden.shape)} don't fit a head {tuple(head.shape)}: (M, H) and (V, H) are needed"
        )
    if bias is not None and tuple(bias.shape) != (len(head),):
        raise ValueError(f"bias_V is {tuple(bias.shape)}; the head has {len(head)} entries")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap is {softcap}; it must be positive, or None")
