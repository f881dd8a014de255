"""Settings of the batch plan."""

from typing import Literal

from pydantic import Field

from dflash.config.section import Section


class Batching(Section):
    """From lengths to the batches of every epoch."""

    policy: Literal["bucketed", "pooled", "packed", "sorted", "random"] = "bucketed"
    """How batches are made. `sorted` and `random` are baselines that show what is lost."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of every shuffle in the plan."""
    budget_tokens: int = Field(default=1024, ge=1)
    """Target cost of a micro-batch at most, in padded tokens (plus attention, if `attention_tokens` is set)."""
    attention_tokens: int | None = Field(default=None, ge=1)
    """Width q at which attention costs as much as the rest: a row of width u costs u + u*u/q. Unset: attention is free."""
    memory_tokens: int | None = Field(default=None, ge=1)
    """Padded tokens of a micro-batch at most, whatever its cost (the memory model). Unset: `budget_tokens` alone binds."""
    budget_anchors: int = Field(default=2048, ge=1)
    """Expected anchors of a micro-batch at most."""
    num_buckets: int | Literal["auto"] = "auto"
    """Number of buckets at most. `auto` takes the number that pays best when one more shape costs `shape_price`."""
    max_buckets: int = Field(default=64, ge=1, le=256)
    """Largest number of buckets that `auto` may choose."""
    shape_price: float = Field(default=0.005, ge=0.0)
    """Price of one more shape, as a share of an epoch's useful tokens."""
    micro_batch_price: float = Field(default=0.1, ge=0.0)
    """Price of one micro-batch, as a share of `budget_tokens`."""
    drafter_context_price: float = Field(default=0.0, ge=0.0)
    """The drafter's work for a context token, as a share of the target's; shapes the boundaries beside attention."""
    boundaries: list[int] | None = None
    """Fixed upper bounds in tokens, increasing, instead of optimal ones."""
    alignment: int | Literal["proportional"] = 8
    """Widths are multiples of this; `proportional`: of max(8, a sixteenth of the power of two below)."""
    cells_per_step: int = Field(default=4, ge=1)
    """Micro-batches of one optimizer step, whatever the ranks."""
    pool_batches: int = Field(default=50, ge=1)
    """`pooled`: micro-batches' worth of samples in a pool that is sorted inside."""
    pack_window: int = Field(default=4000, ge=1)
    """`packed`: samples that are packed together, first-fit."""
    zero_length: Literal["drop", "keep"] = "drop"
    """What happens to empty samples; counted."""
    tables: int = Field(default=2, ge=1)
    """Epochs, from the first, whose micro-batches are written as tables. The plan itself answers any epoch."""
