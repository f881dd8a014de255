"""Plain-PyTorch linear losses over the vocabulary, chunked by bytes; gradients are made in the forward pass."""

import torch
from torch import Tensor

CHUNK_BYTES = 64 << 20


def linear_cross_entropy(
    hidden_MH: Tensor, head_VH: Tensor, labels_M: Tensor, *, bias_V: Tensor | None = None, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Per-row cross-entropy, float32 [M], and whether the most likely token is the label, bool [M]."""
    losses_M, correct_M = _Rows.apply(hidden_MH, head_VH, labels_M, None, bias_V, softcap)
    return losses_M, correct_M


def linear_kl(
    hidden_MH: Tensor, head_VH: Tensor, target_hidden_MH: Tensor, *, bias_V: Tensor | None = None, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Per-row KL(target || drafter), float32 [M], and whether both have the same most likely token, bool [M]."""
    losses_M, agree_M = _Rows.apply(hidden_MH, head_VH, None, target_hidden_MH, bias_V, softcap)
    return losses_M, agree_M


@torch.no_grad()
def linear_argmax(
    hidden_MH: Tensor, head_VH: Tensor, *, bias_V: Tensor | None = None, softcap: float | None = None
) -> Tensor:
    """The most likely token of each row, int64 [M]."""
    chunks = [_logits(each, head_VH, bias_V, None).argmax(dim=-1) for each in hidden_MH.split(_rows(head_VH))]
    return torch.cat(chunks) if chunks else hidden_MH.new_zeros(0, dtype=torch.long)


def _rows(head_VH: Tensor) -> int:
    return max(1, CHUNK_BYTES // (4 * head_VH.shape[0]))


def _logits(hidden: Tensor, head_VH: Tensor, bias_V: Tensor | None, softcap: float | None) -> Tensor:
    logits = torch.nn.functional.linear(hidden, head_VH, bias_V).float()
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_MH, head_VH, labels_M, target_MH, bias_V, softcap):  # type: ignore[no-untyped-def]
        wants = hidden_MH.requires_grad
        gradient_MH = torch.empty_like(hidden_MH) if wants else None
        losses, hits = [], []
        step = _rows(head_VH)
        for start in range(0, len(hidden_MH), step):
            rows = slice(start, start + step)
            logits = _logits(hidden_MH[rows], head_VH, bias_V, softcap)
            log_p = logits.log_softmax(dim=-1)
            if labels_M is not None:
                labels = labels_M[rows]
                losses.append(-log_p.gather(1, labels[:, None])[:, 0])
                hits.append(log_p.argmax(dim=-1) == labels)
                change = log_p.exp_()
                change[torch.arange(len(labels)), labels] -= 1
            else:
                log_q = _logits(target_MH[rows], head_VH, bias_V, softcap).log_softmax(dim=-1)
                q = log_q.exp()
                losses.append((q * (log_q - log_p)).sum(dim=-1))
                hits.append(log_p.argmax(dim=-1) == log_q.argmax(dim=-1))
                change = log_p.exp_().sub_(q)
            if wants:
                if softcap is not None:
                    change.mul_(1 - (logits / softcap) ** 2)
                gradient_MH[rows] = change.to(head_VH.dtype) @ head_VH
        ctx.save_for_backward(gradient_MH)
        found = torch.cat(losses) if losses else hidden_MH.new_zeros(0, dtype=torch.float32)
        hit = torch.cat(hits) if hits else hidden_MH.new_zeros(0, dtype=torch.bool)
        ctx.mark_non_differentiable(hit)
        return found, hit

    @staticmethod
    def backward(ctx, incoming_M, _):  # type: ignore[no-untyped-def]
        (gradient_MH,) = ctx.saved_tensors
        return gradient_MH * incoming_M[:, None].to(gradient_MH.dtype), None, None, None, None, None
