"""Preflight's look at the kernels: every one compiled, one after another, for the cards of this machine before a rank starts.

The compiler that a run would meet at its first step is met here, on one process: an assembler that does not know the
card, a kernel that spills or asks for more shared memory than the card has. What is compiled is what ranks launch, so they
find it in Triton's cache.
"""

from dflash.model.drafter_config import DrafterConfig
from dflash.planning.preflight import Finding


def check_kernels(config: DrafterConfig, dtype: str, capabilities: list[int]) -> list[Finding]:
    """One finding a kind of card.

    Args:
        config: the drafter whose kernels they are.
        dtype: `bf16`, `fp16` or `fp32`, of its products.
        capabilities: compute capabilities of the cards, 90 for 9.0; each kind is compiled for once.
    """
    return [_check(config, dtype, each) for each in sorted(set(capabilities))]


def _check(config: DrafterConfig, dtype: str, capability: int) -> Finding:
    from triton.errors import TritonError

    from dflash.kernels.ahead import compile_all

    name = f"kernels for sm_{capability}"
    kinds = sorted({window is not None for window in config.windows})
    shape = (config.num_heads, config.num_key_value_heads, config.block_size, config.head_size)
    # Heads with a bias or a cap cost two small kernels more; whether the target's has one is known once it is loaded.
    heads = [(True, True), (True, False), (False, True)]
    variants = [(kind, False, False) for kind in kinds] + [(kinds[0], *head) for head in heads]
    try:
        found = [each for extras in variants for each in compile_all(capability, *shape, dtype, *extras)]
    except (TritonError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Finding(
            name,
            False,
            f"a kernel cannot be built: {reason}",
            "set training.kernels: reference, or install the torch and triton that are made for this card",
        )
    largest = max(each.shared_bytes for each in found) / 1024
    return Finding(
        name,
        True,
        f"{len(found)} compiled for {dtype}, none spills, {largest:.0f} KiB of shared memory at most",
        "",
    )
