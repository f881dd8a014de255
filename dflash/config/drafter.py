"""Settings of the draft model and of its anchors."""

from typing import Literal

from pydantic import Field

from dflash.config.section import Section


class Drafter(Section):
    """The draft model. Defaults are the paper's (arXiv:2602.06036)."""

    num_layers: int = Field(default=5, ge=1)
    """Decoder layers."""
    block_size: int = Field(default=16, ge=2)
    """Slots of a block, the anchor's included."""
    taps: list[int] | None = None
    """Target layers whose outputs condition the drafter, 0-based and increasing. Unset: the published formula."""
    num_taps: int = Field(default=5, ge=1)
    """Number of taps for the formula; shallow targets get fewer, with a notice."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Width of the feed-forward part. Unset: the target's."""
    num_heads: int | None = Field(default=None, ge=1)
    """Query heads. Unset: the target's."""
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """Key and value heads. Unset: the target's."""
    head_size: int | None = Field(default=None, ge=2)
    """Size of a head. Unset: the target's."""
    sliding_window: int | None = Field(default=None, ge=1)
    """Context tokens that a slot sees at most. Unset: all."""
    mask_token_id: int | None = Field(default=None, ge=0)
    """Token that fills the undrafted slots. Unset: the target's mask token, or an unused token of its vocabulary."""


class Anchors(Section):
    """Which positions of a sample become anchors."""

    share: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of a sample's valid positions that become anchors, rounded up."""
    max_per_sample: int = Field(default=512, ge=1)
    """Anchors of a sample at most (paper: 512)."""
    max_per_micro_batch: int = Field(default=4096, ge=1)
    """Anchors of a micro-batch at most. A run where this bit is reported as unpaired."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the keys that choose anchors."""


class Objective(Section):
    """What the drafter learns."""

    labels: Literal["data", "target_argmax", "target_distribution"] = "data"
    """Cross-entropy on the data's tokens (paper), on the target's most likely token, or KL to its distribution."""
    weighting: Literal["decay", "dpace", "uniform"] = "decay"
    """Weights of the slots: exp(-(k-1)/gamma) (paper), D-PACE (arXiv:2605.18810), or all one."""
    gamma: float | None = Field(default=None, gt=0.0)
    """Decay of the slot weights. Unset: the paper's (7, 5 and 4 for blocks of 16, 10 and 8), else (block size - 1) / 2."""
    dpace_alpha: float = Field(default=0.5, ge=0.0, le=1.0)
    """Alpha of D-PACE."""
