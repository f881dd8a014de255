"""Block attention against four nested loops in float64: ragged anchors, documents, windows, shared heads."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.kernels.anchor_attention import anchor_attention

Inputs = tuple[torch.Tensor, ...]


def world(case: tuple) -> tuple[Inputs, Inputs]:
    anchors, slots, group, keys, size, rows, width, seed = case
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    tensors = (
        random(anchors, slots, group * keys, size),
        random(rows, width, keys, size),
        random(rows, width, keys, size),
        random(anchors, slots, keys, size),
        random(anchors, slots, keys, size),
    )
    places = torch.randint(0, rows * width, (anchors,), generator=generator).sort().values
    rows_A, anchors_A = places // width, places % width
    starts_A = (torch.rand(anchors, generator=generator) * (anchors_A + 1)).long()
    return tensors, (rows_A, starts_A, anchors_A)


def by_loops(
    tensors: Inputs, places: Inputs, scale: float, window: int | None, shift: int = 0
) -> torch.Tensor:
    """The rule, written out. shift: a planted fault, the context reaches one position too far."""
    query, key_context, value_context, key_block, value_block = (each.double() for each in tensors)
    rows, starts, anchors = (each.tolist() for each in places)
    out = []
    for a in range(query.shape[0]):
        for k in range(query.shape[1]):
            for n in range(query.shape[2]):
                head = n // (query.shape[2] // key_block.shape[2])
                seen = [
                    p
                    for p in range(starts[a], min(anchors[a] + shift, key_context.shape[1]))
                    if window is None or p > anchors[a] + k - window
                ]
                keys = torch.cat([key_context[rows[a], seen, head], key_block[a, :, head]])
                values = torch.cat([value_context[rows[a], seen, head], value_block[a, :, head]])
                out.append((keys @ query[a, k, n] * scale).softmax(0) @ values)
    shape = query.shape
    return torch.stack(out).view(shape) if out else query.new_zeros(shape)


CASES = st.tuples(
    st.integers(0, 7),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([2, 7, 8]),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(0, 10_000),
)


def one_block_a_row(case: tuple) -> tuple[Inputs, Inputs]:
    """The same numbers with as many rows as anchors: what decoding asks for, and what takes another path."""
    anchors, slots, group, keys, size, _, width, seed = case
    tensors, (_, starts_A, anchors_A) = world(
        (anchors, slots, group, keys, size, max(anchors, 1), width, seed)
    )
    return tensors, (torch.arange(anchors), starts_A, anchors_A)


@settings(max_examples=80)
@given(CASES, st.sampled_from([None, 1, 3, 30]), st.sampled_from([world, one_block_a_row]))
def test_outputs_and_gradients_are_those_of_the_rule(
    case: tuple, window: int | None, of: Callable[[tuple], tuple[Inputs, Inputs]]
) -> None:
    tensors, places = of(case)
    ours = [each.clone().requires_grad_() for each in tensors]
    exact = [each.double().requires_grad_() for each in tensors]
    out = anchor_attention(*ours, *places, scale=0.3, window=window, backend="reference")
    wanted = by_loops(tuple(exact), places, 0.3, window)
    assert out.shape == wanted.shape
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    if len(places[0]):
        mix = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        (out * mix).sum().backward()
        (wanted * mix.double()).sum().backward()
        for got, want in zip(ours, exact, strict=True):
            want_grad = torch.zeros_like(want) if want.grad is None else want.grad
            assert got.grad is not None
            torch.testing.assert_close(got.grad.double(), want_grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("of", [world, one_block_a_row])
def test_a_context_that_reaches_too_far_would_be_seen(of: Callable[[tuple], tuple[Inputs, Inputs]]) -> None:
    tensors, places = of((6, 4, 2, 2, 8, 2, 12, 3))
    out = anchor_attention(*tensors, *places, scale=0.3, window=None, backend="reference")
    assert float((out.double() - by_loops(tensors, places, 0.3, None, shift=1)).abs().max()) > 1e-2


@pytest.mark.parametrize("of", [world, one_block_a_row])
def test_large_scores_stay_finite(of: Callable[[tuple], tuple[Inputs, Inputs]]) -> None:
    tensors, places = of((6, 4, 2, 2, 8, 2, 12, 3))
    out = anchor_attention(
        *(each * 100 for each in tensors), *places, scale=1.0, window=None, backend="reference"
    )
    assert bool(out.isfinite().all())


def test_many_anchors_are_cut_into_tiles_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash.kernels import reference_attention

    tensors, places = world((60, 4, 2, 2, 8, 2, 40, 5))
    whole = anchor_attention(*tensors, *places, scale=0.3, window=7, backend="reference")
    monkeypatch.setattr(reference_attention, "TILE_SCORES", 1)
    monkeypatch.setattr(reference_attention, "TILE_BYTES", 2048)
    torch.testing.assert_close(
        anchor_attention(*tensors, *places, scale=0.3, window=7, backend="reference"),
        whole,
        rtol=1e-5,
        atol=1e-6,
    )
