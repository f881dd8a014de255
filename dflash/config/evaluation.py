"""Settings of the final evaluation and of the export."""

from typing import Literal

from pydantic import Field

from dflash.config.section import Section


class Evaluation(Section):
    """Real speculative decoding on held-out prompts."""

    num_prompts: int = Field(default=64, ge=1)
    """Test prompts, the first by hash."""
    max_new_tokens: int = Field(default=96, ge=1)
    """Longest text of a prompt in tokens."""
    temperatures: list[float] = [0.0, 1.0]
    """Temperatures; 0 is greedy and must give the target's own text."""
    batch_size: int = Field(default=16, ge=1)
    """Prompts decoded at once."""
    baselines: list[Literal["untrained", "prompt_lookup"]] = ["untrained", "prompt_lookup"]
    """Drafters in the same table."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of both models. In float32 a divergence from plain greedy is an error."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of sampling."""


class Export(Section):
    """Checkpoints for serving engines."""

    formats: list[Literal["zlab", "speculators"]] = ["zlab", "speculators"]
    """`zlab`: Transformers, SGLang, vLLM. `speculators`: vLLM."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the exported weights."""
