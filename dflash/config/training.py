"""Settings of the optimization. Settings of execution alone stand in `runtime`."""

from typing import Literal

from pydantic import Field

from dflash.config.section import Section


class Training(Section):
    """The optimization."""

    num_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps. Unset: `num_epochs` epochs of the plan."""
    num_epochs: int = Field(default=6, ge=1)
    """Epochs (paper: 6); not used when `num_steps` is set."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the drafter's first weights."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for matrices, AdamW for the rest."""
    learning_rate: float = Field(default=6.0e-4, gt=0.0)
    """Peak learning rate (paper: 6e-4 for AdamW)."""
    final_learning_rate_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Learning rate at the end, as a share of the peak."""
    warmup_share: float = Field(default=0.04, ge=0.0, le=1.0)
    """Share of the steps that warm up linearly (paper: 0.04)."""
    weight_decay: float = Field(default=0.01, ge=0.0)
    """Decoupled weight decay of matrices."""
    betas: tuple[float, float] = Field(default=(0.9, 0.95), strict=False)
    """AdamW's betas."""
    clip_norm: float = Field(default=1.0, gt=0.0)
    """Largest norm of the gradient (paper: 1)."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the drafter's products; master weights are float32. `auto`: bfloat16 where the device multiplies it natively."""
    kernels: Literal["auto", "reference", "triton"] = "auto"
    """`auto` and `reference`: plain PyTorch, chunked, on any device. `triton`: fused kernels, which have not run on a GPU yet."""
    deterministic: bool = True
    """Same inputs give the same bits on the same machine."""
    start_from: str | None = None
    """Another experiment of this config, or a folder with an exported drafter, whose weights are the first ones."""
    heldout_interval_steps: int = Field(default=100, ge=1)
    """Steps between held-out evaluations."""
    heldout_samples: int = Field(default=64, ge=1)
    """Validation samples of a held-out evaluation, the same every time."""
    max_bad_steps: int = Field(default=10, ge=1)
    """Skipped non-finite steps in a row that stop the run."""
