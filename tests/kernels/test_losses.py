"""The linear losses against their definitions in float64, and that nothing of rows x vocabulary is kept."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.kernels.linear_cross_entropy import linear_argmax, linear_cross_entropy, linear_kl


def world(rows: int, hidden: int, vocabulary: int, seed: int, scale: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden": torch.randn(rows, hidden, generator=generator) * scale,
        "target": torch.randn(rows, hidden, generator=generator) * scale,
        "head": torch.randn(vocabulary, hidden, generator=generator),
        "bias": torch.randn(vocabulary, generator=generator),
        "labels": torch.randint(0, vocabulary, (rows,), generator=generator),
        "weights": torch.rand(rows, generator=generator),
    }


def logits64(
    hidden: torch.Tensor, made: dict[str, torch.Tensor], bias: bool, softcap: float | None
) -> torch.Tensor:
    logits = hidden.double() @ made["head"].double().T + (made["bias"].double() if bias else 0.0)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


CASES = st.tuples(
    st.integers(0, 40),
    st.integers(1, 33),
    st.integers(2, 300),
    st.integers(0, 1000),
    st.sampled_from([0.1, 1.0, 30.0]),
    st.booleans(),
    st.sampled_from([None, 5.0, 30.0]),
)


@settings(max_examples=60)
@given(CASES)
def test_cross_entropy_and_its_gradient(case: tuple) -> None:
    rows, hidden_size, vocabulary, seed, scale, bias, softcap = case
    made = world(rows, hidden_size, vocabulary, seed, scale)
    options = {"bias_V": made["bias"] if bias else None, "softcap": softcap}
    hidden = made["hidden"].clone().requires_grad_()
    losses, correct = linear_cross_entropy(
        hidden, made["head"], made["labels"], backend="reference", **options
    )
    exact = made["hidden"].double().requires_grad_()
    logits = logits64(exact, made, bias, softcap)
    wanted = torch.nn.functional.cross_entropy(logits, made["labels"], reduction="none")
    assert losses.dtype == torch.float32
    assert float((losses.double() - wanted).detach().norm()) < 3e-4 * max(1.0, float(wanted.detach().norm()))
    if rows:
        best = logits.detach().max(dim=1).values
        chosen = logits.detach().gather(1, made["labels"][:, None])[:, 0]
        clear = (best - chosen > 1e-3) | (best == chosen)
        assert torch.equal(correct[clear], (best == chosen)[clear])
        (losses * made["weights"]).sum().backward()
        (wanted * made["weights"].double()).sum().backward()
        assert float((hidden.grad.double() - exact.grad).norm()) < 3e-4 * max(1.0, float(exact.grad.norm()))


@settings(max_examples=60)
@given(CASES)
def test_divergence_and_its_gradient(case: tuple) -> None:
    rows, hidden_size, vocabulary, seed, scale, bias, softcap = case
    made = world(rows, hidden_size, vocabulary, seed, scale)
    options = {"bias_V": made["bias"] if bias else None, "softcap": softcap}
    hidden = made["hidden"].clone().requires_grad_()
    losses, _ = linear_kl(hidden, made["head"], made["target"], backend="reference", **options)
    exact = made["hidden"].double().requires_grad_()
    ours = logits64(exact, made, bias, softcap).log_softmax(1)
    theirs = logits64(made["target"], made, bias, softcap).log_softmax(1)
    wanted = (theirs.exp() * (theirs - ours)).sum(1)
    assert float((losses.double() - wanted).detach().norm()) < 3e-4 * max(1.0, float(wanted.detach().norm()))
    if rows:
        (losses * made["weights"]).sum().backward()
        (wanted * made["weights"].double()).sum().backward()
        assert float((hidden.grad.double() - exact.grad).norm()) < 3e-4 * max(1.0, float(exact.grad.norm()))


@pytest.mark.parametrize("labels", ["target", "data"])
def test_bfloat16_loses_no_more_than_its_own_rounding(labels: str) -> None:
    """The same bfloat16 numbers in float64: sums and softmax are not rounded to bfloat16 on the way (19 % off elsewhere)."""
    made = {
        name: each.bfloat16() if each.is_floating_point() else each
        for name, each in world(64, 96, 3000, 1, 0.3).items()
    }
    hidden, exact = made["hidden"].clone().requires_grad_(), made["hidden"].double().requires_grad_()
    ours = logits64(exact, made, False, None).log_softmax(1)
    if labels == "target":
        losses, _ = linear_kl(hidden, made["head"], made["target"], backend="reference")
        theirs = logits64(made["target"], made, False, None).log_softmax(1)
        wanted = (theirs.exp() * (theirs - ours)).sum(1)
    else:
        losses, _ = linear_cross_entropy(hidden, made["head"], made["labels"], backend="reference")
        wanted = -ours.gather(1, made["labels"][:, None])[:, 0]
    losses.sum().backward()
    wanted.sum().backward()
    assert float((losses.double() - wanted).detach().norm()) < 1e-2 * float(wanted.detach().norm())
    assert float((hidden.grad.double() - exact.grad).norm()) < 1e-2 * float(exact.grad.norm())


def test_a_wrong_gradient_would_be_seen() -> None:
    """The bound above is tight enough: leaving out the label's part breaks it by far."""
    made = world(20, 16, 50, 0, 1.0)
    hidden = made["hidden"].clone().requires_grad_()
    losses, _ = linear_cross_entropy(hidden, made["head"], made["labels"], backend="reference")
    losses.sum().backward()
    mutated = (made["hidden"] @ made["head"].T).softmax(1) @ made["head"]
    assert float((hidden.grad - mutated).norm()) > 0.1 * float(mutated.norm())


def test_argmax_takes_the_first_of_equals_and_weights_of_zero_give_no_gradient() -> None:
    hidden = torch.zeros(2, 3, requires_grad=True)
    head = torch.randn(7, 3)
    assert linear_argmax(hidden, head, backend="reference").tolist() == [0, 0]
    losses, _ = linear_cross_entropy(hidden, head, torch.tensor([1, 2]), backend="reference")
    (losses * 0).sum().backward()
    assert hidden.grad is not None and float(hidden.grad.abs().max()) == 0


def test_memory_does_not_grow_with_rows_times_vocabulary() -> None:
    """What autograd keeps is a gradient of the hidden states' size."""
    made = world(600, 8, 5000, 0, 1.0)
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses, _ = linear_cross_entropy(
            made["hidden"].requires_grad_(), made["head"], made["labels"], backend="reference"
        )
        losses.sum().backward()
    assert kept and max(kept) <= 600 * 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"head_VH": torch.zeros(4, 9)}, r"hidden states \(2, 3\) don't fit a head \(4, 9\)"),
        ({"bias_V": torch.zeros(9)}, r"bias_V is \(9,\); the head has 4 entries"),
        ({"softcap": 0.0}, r"softcap is 0\.0; it must be positive"),
        ({"labels_M": torch.zeros(5, dtype=torch.long)}, r"labels_M is \(5,\); there are 2 rows"),
        ({"backend": "triton"}, "they need a CUDA device"),
    ],
)
def test_what_does_not_fit_is_named(arguments: dict, said: str) -> None:
    fine = {
        "hidden_MH": torch.zeros(2, 3),
        "head_VH": torch.zeros(4, 3),
        "labels_M": torch.zeros(2, dtype=torch.long),
        "backend": "reference",
    }
    with pytest.raises(ValueError, match=said):
        linear_cross_entropy(**{**fine, **arguments})


def test_nothing_runs_in_the_place_of_triton() -> None:
    with pytest.raises(ValueError, match=r"Set training\.kernels to auto or reference"):
        linear_argmax(torch.zeros(2, 3), torch.zeros(4, 3), backend="triton")
