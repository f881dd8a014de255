"""Every kernel compiled ahead of time, for a card that need not be there: what preflight and tests ask for.

Compiles serially, in this process, into Triton's cache. Must not run where Triton's interpreter is switched on.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dflash.kernels import attention_tiles, triton_attention, triton_loss

SHARED_LIMITS = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Bytes of shared memory that a program may have, by compute capability (CUDA programming guide, table of features)."""


@dataclass(frozen=True)
class Compiled:
    """One kernel. registers and spilled bytes a thread; shared_bytes a program."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


def compile_all(
    capability: int,
    num_heads: int,
    num_keys: int,
    block_size: int,
    head_size: int,
    dtype: str,
    windowed: bool,
    has_bias: bool,
    has_cap: bool,
) -> list[Compiled]:
    """Compile every kernel of a drafter.

    Args:
        capability: compute capability as one number, 90 for 9.0.
        dtype: `bf16`, `fp16` or `fp32`, of states and head.

    Raises:
        ValueError: a kernel spills registers or asks for more shared memory than the card has.
    """
    sizes = attention_tiles.tile_sizes(num_heads, num_keys, block_size, head_size)
    switches = {"HAS_WINDOW": windowed, "UPCAST": False}
    found = []
    for kernel, used, of_context in (
        (triton_attention.forward_kernel, sizes, False),
        (triton_attention.backward_block_kernel, attention_tiles.backward_block_sizes(sizes), False),
        (triton_attention.backward_context_kernel, sizes, True),
    ):
        warps = attention_tiles.num_warps(sizes, of_context)
        options = {"num_warps": warps, "num_stages": triton_attention.NUM_STAGES}
        found.append(_compile(kernel, capability, dtype, {**used, **switches}, options))
    flags = {"HAS_BIAS": has_bias, "HAS_CAP": has_cap, "BLOCK": triton_loss.BLOCK}
    for kernel in (triton_loss.softmax_tile_kernel, triton_loss.divergence_row_kernel):
        found.append(_compile(kernel, capability, dtype, flags, {"num_warps": triton_loss.NUM_WARPS}))
    limit = SHARED_LIMITS.get(capability, 99 << 10)
    for each in found:
        if each.spilled_bytes or each.shared_bytes > limit:
            raise ValueError(
                f"{each.name} does not fit a card of capability {capability}: it spills {each.spilled_bytes} bytes a thread and asks for "
                f"{each.shared_bytes} bytes of shared memory of {limit}. Use training.kernels: reference, or a smaller head size"
            )
    return found


_TYPES = {"labels_ptr": "*i64", "rows_ptr": "*i64", "starts_ptr": "*i64", "anchors_ptr": "*i64", "from_ptr": "*i32", "to_ptr": "*i32",
          "agree_ptr": "*i8", "scale": "fp32", "softcap": "fp32"}  # fmt: skip
_FLOATS = {"logits_ptr", "lse_ptr", "delta_ptr", "drafted_ptr", "target_ptr", "losses_ptr", "highest_ptr", "total_ptr", "label_ptr",
           "shrink_ptr", "slope_ptr"}  # fmt: skip
"""Pointers to float32 whatever the states' type is."""
_UNALIGNED = {"losses_ptr", "agree_ptr", "labels_ptr"}
"""Pointers into the middle of a tensor."""


def _compile(
    kernel: Any, capability: int, dtype: str, constants: dict[str, Any], options: dict[str, int]
) -> Compiled:
    used = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in used:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = "*fp32" if name in _FLOATS else _TYPES.get(name, f"*{dtype}")
            if name not in _UNALIGNED:
                attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = _TYPES.get(name, "i32")
    source = ASTSource(kernel, signature, used, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack = _resources(compiled.asm["cubin"])
    return Compiled(kernel.__name__, registers, stack, compiled.metadata.shared)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack a thread, as the bundled cuobjdump reads them from a cubin."""
    dump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [dump, "-res-usage", file.name], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    assert registers and stack, text
    return int(registers[1]), int(stack[1])
