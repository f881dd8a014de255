"""Preflight compiles the drafter's kernels for the cards before a rank starts; no card has to be there for that."""

import os
from dataclasses import replace

import pytest

from dflash.model.drafter_config import DrafterConfig
from dflash.planning.kernel_check import check_kernels

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("TRITON_INTERPRET")), reason="the interpreter is switched on, so nothing is compiled"
)
CONFIG = DrafterConfig(
    hidden_size=64,
    intermediate_size=128,
    num_layers=1,
    num_heads=4,
    num_key_value_heads=2,
    head_size=64,
    vocab_size=64,
    taps=(1,),
    block_size=8,
    mask_token_id=3,
    num_target_layers=4,
    rope={"rope_theta": 1e4, "rope_type": "default"},
    windows=(None,),
)


def test_each_kind_of_card_is_compiled_for_once() -> None:
    (found,) = check_kernels(CONFIG, "bf16", [90, 90])
    assert found.ok and found.name == "kernels for sm_90"
    assert found.found.startswith("20 compiled for bf16, none spills")


def test_layers_with_and_without_a_window_are_both_compiled() -> None:
    mixed = replace(CONFIG, num_layers=2, windows=(None, 64))
    (found,) = check_kernels(mixed, "bf16", [90])
    assert found.ok and found.found.startswith("25 compiled")


def test_float32_states_do_not_fit_and_preflight_says_so() -> None:
    (found,) = check_kernels(
        replace(CONFIG, num_heads=32, num_key_value_heads=8, block_size=16), "fp32", [80]
    )
    assert not found.ok and "spills" in found.found


def test_a_card_that_the_compiler_does_not_know_is_said_with_the_remedy() -> None:
    (found,) = check_kernels(CONFIG, "bf16", [300])
    assert not found.ok and found.found.startswith("a kernel cannot be built: ")
    assert "training.kernels: reference" in found.remedy
