"""Linear losses over the vocabulary: the choice between the reference and Triton."""

from torch import Tensor

from dflash.kernels import reference_loss
from dflash.kernels.anchor_attention import Backend


def linear_cross_entropy(
    hidden_MH: Tensor,
    head_VH: Tensor,
    labels_M: Tensor,
    *,
    bias_V: Tensor | None = None,
    softcap: float | None = None,
    backend: Backend = "reference",
) -> tuple[Tensor, Tensor]:
    """Per-row cross-entropy and correctness; see `reference_loss`."""
    return reference_loss.linear_cross_entropy(hidden_MH, head_VH, labels_M, bias_V=bias_V, softcap=softcap)


def linear_kl(
    hidden_MH: Tensor,
    head_VH: Tensor,
    target_hidden_MH: Tensor,
    *,
    bias_V: Tensor | None = None,
    softcap: float | None = None,
    backend: Backend = "reference",
) -> tuple[Tensor, Tensor]:
    """Per-row KL divergence and agreement; see `reference_loss`."""
    return reference_loss.linear_kl(hidden_MH, head_VH, target_hidden_MH, bias_V=bias_V, softcap=softcap)


def linear_argmax(
    hidden_MH: Tensor,
    head_VH: Tensor,
    *,
    bias_V: Tensor | None = None,
    softcap: float | None = None,
    backend: Backend = "reference",
) -> Tensor:
    """The most likely token of each row; see `reference_loss`."""
    return reference_loss.linear_argmax(hidden_MH, head_VH, bias_V=bias_V, softcap=softcap)
