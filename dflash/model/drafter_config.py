"""What a drafter is: its shape, its taps, and how both follow from a target.

The taps' formula and the defaults are those of the published drafters (z-lab/dflash): tap numbers count decoder
layers from 0 and are always stored, never derived again when a drafter is loaded.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

SCALED_ROPES = ("linear", "llama3", "yarn")
"""Rope types besides `default` that are a fixed table of frequencies, which every loader reads the same way."""


@dataclass(frozen=True)
class TargetFacts:
    """What a drafter has to know of its target.

    Attributes:
        name: where the target came from, as the config names it (`hub:` taken off).
        num_layers: decoder layers. vocab_size: rows of the embedding.
        head_size: None where the target's attention has no single head size.
        rope: theta, type and factors of the full-attention layers.
        max_position_embeddings: longest text in tokens.
    """

    name: str
    architecture: str
    model_type: str
    hidden_size: int
    intermediate_size: int | None
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_size: int | None
    vocab_size: int
    rms_norm_eps: float
    rope: dict[str, Any]
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_id: int | list[int] | None


@dataclass(frozen=True)
class DrafterConfig:
    """The shape of a drafter. Everything that its exported `config.json` says follows from it.

    Attributes:
        taps: target layers whose outputs condition the drafter, 0-based, increasing; in the order of `fc`'s columns.
        block_size: slots of a block, the anchor's included.
        windows: for every layer, how many tokens of context a slot sees, itself included; None for all.
        rope: `rope_theta`, `rope_type`, `partial_rotary_factor` and the factors of the type.
        num_target_layers: decoder layers of the target.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    vocab_size: int
    taps: tuple[int, ...]
    block_size: int
    mask_token_id: int
    num_target_layers: int
    rope: dict[str, Any]
    windows: tuple[int | None, ...]
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 40960
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self) -> None:
        check_taps(self.taps, self.num_target_layers)
        _check_shape(self)

    def as_json(self) -> dict[str, Any]:
        """The config as plain JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(raw: dict[str, Any]) -> "DrafterConfig":
        """The inverse of `as_json`.

        Raises:
            ValueError: a field is missing or unknown.
        """
        known = {field.name for field in fields(DrafterConfig)}
        if set(raw) != known:
            raise ValueError(
                f"a drafter's config has the fields {sorted(known)}; differing: {sorted(known ^ set(raw))}"
            )
        return DrafterConfig(**{**raw, "taps": tuple(raw["taps"]), "windows": tuple(raw["windows"])})


@dataclass(frozen=True)
class Wishes:
    """What the user's config may fix; None leaves it to the target's shape and the published formula."""

    num_layers: int = 5
    block_size: int = 16
    taps: tuple[int, ...] | None = None
    num_taps: int = 5
    intermediate_size: int | None = None
    num_heads: int | None = None
    num_key_value_heads: int | None = None
    head_size: int | None = None
    sliding_window: int | None = None


def published_taps(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """The published formula: from the second to the third-to-last layer, evenly.

    Shallow targets, where the formula would repeat a layer, get the most taps that do not: at most N - 3.

    Raises:
        ValueError: a target of fewer than 4 layers, where no tap is left.
    """
    if num_target_layers < 4:
        raise ValueError(
            f"the target has {num_target_layers} layers; the formula for taps needs at least 4. Set drafter.taps yourself"
        )
    for count in range(min(num_taps, num_target_layers - 3), 1, -1):
        # Python's rounding of halves to even is part of the formula
        taps = tuple(round(1 + place * (num_target_layers - 4) / (count - 1)) for place in range(count))
        if len(set(taps)) == count:
            return taps
    return (num_target_layers // 2,)


def check_taps(taps: tuple[int, ...], num_target_layers: int) -> None:
    """Raise a ValueError unless the taps increase and leave out the last layer.

    The last layer is refused because its output is known by two names: before the final norm to serving engines,
    after it in Transformers' `hidden_states`.
    """
    if not taps or any(b <= a for a, b in zip((-1, *taps), taps, strict=False)):
        raise ValueError(f"drafter.taps is {list(taps)}; layer numbers must be 0 or more and increasing")
    if taps[-1] >= num_target_layers - 1:
        raise ValueError(
            f"drafter.taps names layer {taps[-1]}, but of {num_target_layers} target layers the last that may be tapped "
            f"is {num_target_layers - 2}: serving engines and Transformers disagree about what the last one gives"
        )


def drafter_rope(rope: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The drafter's rope from the target's, and notices about what was left out.

    Theta and fixed scalings are taken over. Left out: parts of a head that do not rotate, multimodal sections, and
    scalings that depend on the text's length. Rope is only the drafter's own measure of distance, and loaders disagree
    on these: Transformers' Qwen3 rotates whole heads whatever `partial_rotary_factor` says, vLLM and SGLang obey it,
    and a drafter trained one way and served the other accepts nearly nothing (speculators #613).
    """
    kind = rope.get("rope_type", "default")
    plain = {
        "rope_theta": float(rope.get("rope_theta", 10000.0)),
        "rope_type": "default",
        "partial_rotary_factor": 1.0,
    }
    notices = []
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        notices.append(
            f"the target rotates {rope['partial_rotary_factor']:g} of a head; the drafter rotates whole heads, as all engines serve"
        )
    if kind in SCALED_ROPES:
        kept = {key: value for key, value in rope.items() if not key.startswith("mrope") and key != "type"}
        return {**kept, "rope_theta": plain["rope_theta"], "partial_rotary_factor": 1.0}, notices
    if kind != "default":
        notices.append(
            f"the target's rope is {kind!r}, which depends on more than the position; the drafter's is plain"
        )
    return plain, notices


def derive_config(facts: TargetFacts, wishes: Wishes, mask_token_id: int) -> tuple[DrafterConfig, list[str]]:
    """The drafter's shape from the target and the user's wishes, and notices worth showing.

    Raises:
        ValueError: the target has no such size and the wishes do not give it; taps or shapes that cannot be.
    """
    rope, notices = drafter_rope(facts.rope)
    taps = wishes.taps
    if taps is None:
        taps = published_taps(facts.num_layers, wishes.num_taps)
        if len(taps) < wishes.num_taps:
            notices.append(
                f"the target has {facts.num_layers} layers, so {len(taps)} taps instead of {wishes.num_taps}: {list(taps)}"
            )
    config = DrafterConfig(
        hidden_size=facts.hidden_size,
        intermediate_size=_given(
            wishes.intermediate_size, facts.intermediate_size, "intermediate_size", facts
        ),
        num_layers=wishes.num_layers,
        num_heads=wishes.num_heads or facts.num_heads,
        num_key_value_heads=wishes.num_key_value_heads
        or min(facts.num_key_value_heads, wishes.num_heads or facts.num_heads),
        head_size=_given(wishes.head_size, facts.head_size, "head_size", facts),
        vocab_size=facts.vocab_size,
        taps=taps,
        block_size=wishes.block_size,
        mask_token_id=mask_token_id,
        num_target_layers=facts.num_layers,
        rope=rope,
        windows=(wishes.sliding_window,) * wishes.num_layers,
        rms_norm_eps=facts.rms_norm_eps,
        max_position_embeddings=facts.max_position_embeddings,
        bos_token_id=facts.bos_token_id,
        eos_token_id=facts.eos_token_id,
    )
    return config, notices


def check_fit(config: DrafterConfig, facts: TargetFacts) -> None:
    """Raise a ValueError where a drafter cannot serve a target."""
    for field, drafter_side, target_side in (
        ("hidden_size", config.hidden_size, facts.hidden_size),
        ("num_layers", config.num_target_layers, facts.num_layers),
    ):
        if drafter_side != target_side:
            raise ValueError(
                f"the drafter was made for a target with {field} {drafter_side}, but {facts.name} has {target_side}: "
                "it uses the target's embedding, head and layers, so the two must agree"
            )
    if config.mask_token_id >= facts.vocab_size:
        raise ValueError(
            f"mask token {config.mask_token_id} has no row in {facts.name}'s embedding of {facts.vocab_size}"
        )


def paper_gamma(block_size: int) -> float:
    """The paper's decay of the slot weights: 7, 5 and 4 for blocks of 16, 10 and 8; else (block size - 1) / 2."""
    return {16: 7.0, 10: 5.0, 8: 4.0}.get(block_size, (block_size - 1) / 2)


def _given(wish: int | None, of_target: int | None, name: str, facts: TargetFacts) -> int:
    value = of_target if wish is None else wish
    if value is None:
        raise ValueError(f"{facts.name} ({facts.model_type}) has no single {name}; set drafter.{name}")
    return value


def _check_shape(config: DrafterConfig) -> None:
    if config.num_heads % config.num_key_value_heads:
        raise ValueError(
            f"drafter.num_heads is {config.num_heads}, not a multiple of num_key_value_heads {config.num_key_value_heads}"
        )
    rotated = config.head_size * config.rope.get("partial_rotary_factor", 1.0)
    if rotated != math.floor(rotated) or rotated % 2:
        raise ValueError(
            f"drafter.head_size is {config.head_size}, of which {rotated:g} rotate; they must be an even number"
        )
    if len(config.windows) != config.num_layers:
        raise ValueError(f"{len(config.windows)} windows for {config.num_layers} layers; give one a layer")
    narrow = [window for window in config.windows if window is not None and window < config.block_size]
    if narrow:
        raise ValueError(
            f"drafter.sliding_window is {narrow[0]}; it must reach over a block of {config.block_size}"
        )
    if config.block_size < 2:
        raise ValueError(
            f"drafter.block_size is {config.block_size}; a block needs the anchor and at least one more slot"
        )
    if config.rope.get("rope_type", "default") not in ("default", *SCALED_ROPES):
        raise ValueError(
            f"rope type {config.rope['rope_type']!r} is not served for drafters; use default or {', '.join(SCALED_ROPES)}"
        )
