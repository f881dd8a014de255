"""Settings of how the frozen target is loaded. Which target it is stands in the root's `target`."""

from typing import Literal

from dflash.config.section import Section


class TargetLoading(Section):
    """How the frozen target is loaded."""

    revision: str | None = None
    """Revision of a hub model. Unset: resolved once and recorded."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute type. `auto`: bfloat16 where the device multiplies it natively, else float32."""
    attention: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"] = "sdpa"
    """Attention implementation of transformers."""
    trust_remote_code: bool = False
    """Run code that lies in the model's folder. Off: nothing from the folder is executed."""
