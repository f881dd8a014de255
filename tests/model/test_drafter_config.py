"""Shapes from targets: taps, rope, sizes, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from dflash.model.drafter_config import (
    DrafterConfig,
    Wishes,
    check_fit,
    derive_config,
    drafter_rope,
    published_taps,
)
from dflash.model.target import facts_of
from tests.model.tiny import MASK, tiny_config

FACTS = facts_of(tiny_config(), "tiny")


def derived(**wishes: Any) -> DrafterConfig:
    return derive_config(FACTS, Wishes(**wishes), MASK)[0]


@pytest.mark.parametrize(
    ("layers", "count", "taps"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (32, 5, (1, 8, 15, 22, 29)),
        (40, 5, (1, 10, 19, 28, 37)),
        (64, 5, (1, 16, 31, 46, 61)),
        (36, 1, (18,)),
        # halves are rounded to even, as in the published code
        (13, 3, (1, 6, 10)),
        (8, 5, (1, 2, 3, 4, 5)),
    ],
)
def test_the_published_formula(layers: int, count: int, taps: tuple[int, ...]) -> None:
    assert published_taps(layers, count) == taps


def test_shallow_targets_get_fewer_taps_and_a_notice() -> None:
    assert published_taps(6, 5) == (1, 2, 3)
    assert published_taps(4, 5) == (2,)
    for layers in range(4, 70):
        taps = published_taps(layers, 5)
        assert len(taps) == min(5, layers - 3) and len(set(taps)) == len(taps) and taps[-1] < layers - 1
    _, notices = derive_config(replace(FACTS, num_layers=6), Wishes(), MASK)
    assert notices == ["the target has 6 layers, so 3 taps instead of 5: [1, 2, 3]"]
    with pytest.raises(ValueError, match="the target has 3 layers; the formula for taps needs at least 4"):
        published_taps(3, 5)


def test_the_last_layer_and_disorder_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match="drafter.taps names layer 7, but of 8 target layers the last that may be tapped is 6",
    ):
        derived(taps=(1, 7))
    with pytest.raises(
        ValueError, match=r"drafter.taps is \[3, 3\]; layer numbers must be 0 or more and increasing"
    ):
        derived(taps=(3, 3))
    assert derived(taps=(0, 6)).taps == (0, 6)


def test_defaults_are_the_papers_and_the_targets() -> None:
    config = derived()
    assert (config.num_layers, config.block_size, config.taps) == (5, 16, (1, 2, 3, 4, 5))
    assert (
        config.hidden_size,
        config.intermediate_size,
        config.num_heads,
        config.num_key_value_heads,
        config.head_size,
    ) == (32, 48, 4, 2, 8)
    other = derived(
        num_heads=6,
        num_key_value_heads=3,
        head_size=16,
        intermediate_size=20,
        sliding_window=32,
        num_layers=2,
    )
    assert (other.num_heads, other.num_key_value_heads, other.head_size, other.intermediate_size) == (
        6,
        3,
        16,
        20,
    )
    assert other.windows == (32, 32)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (
            {"num_heads": 5, "num_key_value_heads": 2},
            "drafter.num_heads is 5, not a multiple of num_key_value_heads 2",
        ),
        ({"head_size": 9}, "drafter.head_size is 9, of which 9 rotate; they must be an even number"),
        ({"sliding_window": 8}, "drafter.sliding_window is 8; it must reach over a block of 16"),
        ({"block_size": 1}, "drafter.block_size is 1; a block needs the anchor and at least one more slot"),
    ],
)
def test_shapes_that_cannot_be(wishes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        derived(**wishes)


def test_windows_and_ropes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="1 windows for 5 layers; give one a layer"):
        replace(derived(), windows=(None,))
    with pytest.raises(
        ValueError,
        match="rope type 'dynamic' is not served for drafters; use default or linear, llama3, yarn",
    ):
        replace(derived(), rope={"rope_theta": 1e4, "rope_type": "dynamic", "partial_rotary_factor": 1.0})


def test_a_target_without_one_width_needs_the_users() -> None:
    facts = replace(FACTS, intermediate_size=None)
    with pytest.raises(
        ValueError, match=r"tiny \(qwen3\) has no single intermediate_size; set drafter.intermediate_size"
    ):
        derive_config(facts, Wishes(), MASK)
    assert derive_config(facts, Wishes(intermediate_size=64), MASK)[0].intermediate_size == 64


def test_rope_keeps_fixed_scalings_and_drops_what_engines_disagree_on() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e6}
    assert drafter_rope(yarn) == ({**yarn, "partial_rotary_factor": 1.0}, [])
    partial = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    }
    rope, notices = drafter_rope(partial)
    assert rope == {"rope_theta": 1e7, "rope_type": "default", "partial_rotary_factor": 1.0}
    assert notices == [
        "the target rotates 0.25 of a head; the drafter rotates whole heads, as all engines serve"
    ]
    rope, notices = drafter_rope({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5e5})
    assert rope["rope_type"] == "default" and "depends on more than the position" in notices[0]


def test_json_round_trip() -> None:
    config = derived(sliding_window=64)
    raw = config.as_json()
    assert (
        DrafterConfig.from_json({**raw, "taps": list(raw["taps"]), "windows": list(raw["windows"])}) == config
    )
    with pytest.raises(ValueError, match=r"a drafter's config has the fields .*differing: \['surprise'\]"):
        DrafterConfig.from_json({**raw, "surprise": 1})


def test_a_drafter_for_another_target_is_refused() -> None:
    config = derived()
    check_fit(config, FACTS)
    with pytest.raises(
        ValueError, match="the drafter was made for a target with hidden_size 32, but tiny has 64"
    ):
        check_fit(config, replace(FACTS, hidden_size=64))
    with pytest.raises(
        ValueError, match="the drafter was made for a target with num_layers 8, but tiny has 12"
    ):
        check_fit(config, replace(FACTS, num_layers=12))
    with pytest.raises(ValueError, match="mask token 96 has no row in tiny's embedding of 90"):
        check_fit(config, replace(FACTS, vocab_size=90))
