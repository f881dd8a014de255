"""What a rank launches is what preflight compiled, however many anchors, rows, keys or vocabulary entries there are."""

import os
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction

from dflash.kernels import triton_attention, triton_loss
from dflash.kernels.ahead import configurations, planned_source, source_of

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("TRITON_INTERPRET")), reason="the interpreter is switched on, so nothing is compiled"
)
HEADS, KEYS, SLOTS, SIZE = 6, 2, 8, 32
Keys = set[tuple[str, str, str]]


def options_key(options: dict[str, Any]) -> str:
    return str(make_backend(GPUTarget("cuda", 90, 32)).parse_options(dict(options)).hash())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Keys:
    """Kernel, hash of what Triton compiles, and hash of the options, of every launch; nothing runs."""
    keys: Keys = set()

    def run(self: Any, *positional: Any, grid: Any, warmup: bool, **named: Any) -> None:
        arguments = dict(zip(self.arg_names, positional, strict=False)) | {
            name: value for name, value in named.items() if name in self.arg_names
        }
        if "UPCAST" in arguments:
            arguments["UPCAST"] = False  # true on the CPU alone
        options = {name: value for name, value in named.items() if name not in self.arg_names}
        keys.add((self.__name__, source_of(self, arguments, 90).hash(), options_key(options)))

    monkeypatch.setattr(JITFunction, "run", run)
    return keys


def compiled(windowed: bool, bias: bool, cap: bool) -> Keys:
    return {
        (kernel.__name__, planned_source(kernel, 90, "fp16", constants).hash(), options_key(options))
        for kernel, constants, options in configurations(HEADS, KEYS, SLOTS, SIZE, windowed, bias, cap)
    }


def attend(anchors: int, width: int, window: int | None, offset: int = 0) -> None:
    def states(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float16, requires_grad=True)

    places = [torch.zeros(anchors + offset, dtype=torch.long)[offset:] for _ in range(3)]
    out = triton_attention.anchor_attention(
        states(anchors, SLOTS, HEADS, SIZE),
        states(2, width, KEYS, SIZE),
        states(2, width, KEYS, SIZE),
        states(anchors, SLOTS, KEYS, SIZE),
        states(anchors, SLOTS, KEYS, SIZE),
        *places,
        scale=1,  # a whole number must not make a kernel of its own
        window=window,
    )
    out.sum().backward()


def lose(rows: int, vocabulary: int, bias: bool, softcap: float | None) -> None:
    def states(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float16)

    options = {"bias_V": states(vocabulary) if bias else None, "softcap": softcap}
    labels = torch.zeros(rows, dtype=torch.long)
    triton_loss.linear_cross_entropy(states(rows, 8), states(vocabulary, 8), labels, **options)
    triton_loss.linear_kl(states(rows, 8), states(vocabulary, 8), states(rows, 8), **options)


@pytest.mark.parametrize(
    ("window", "bias", "softcap"), [(None, False, None), (1, True, 30), (33, True, None)]
)
def test_launches_are_those_compiled_ahead_whatever_the_counts(
    launched: Keys, monkeypatch: pytest.MonkeyPatch, window: int | None, bias: bool, softcap: float | None
) -> None:
    monkeypatch.setattr(triton_loss, "TILE_ENTRIES", 64)
    monkeypatch.setattr(
        triton_loss, "TILE_BYTES", 4 * 64 * 3
    )  # tiles of three rows: some begin off a multiple of 16 bytes
    for anchors in (1, 15, 16, 17):
        for width in (1, 16, 37):
            attend(anchors, width, window, offset=width % 2)
        for vocabulary in (16, 131):
            lose(anchors, vocabulary, bias, softcap)
    assert launched == compiled(window is not None, bias, softcap is not None)


def test_a_count_that_is_specialised_would_be_seen(launched: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    (counted,) = (each for each in triton_attention.forward_kernel.params if each.name == "A")
    monkeypatch.setattr(counted, "do_not_specialize", False)
    for anchors in (1, 15, 16):
        attend(anchors, 8, None)
    assert len([each for each in launched if each[0] == "forward_kernel"]) == 3


def test_what_a_switch_changes_is_another_kernel() -> None:
    assert not compiled(False, False, False) & compiled(True, True, True)
