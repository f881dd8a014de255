"""Every kernel compiled ahead of time, for a card that need not be there: what preflight and tests ask for.

Compiles serially, in this process, into Triton's cache. Must not run where Triton's interpreter is switched on.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import MockTensor, create_function_from_signature

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
    shape = (num_heads, num_keys, block_size, head_size)
    found = [
        _compile(kernel, capability, dtype, constants, options)
        for kernel, constants, options in configurations(*shape, windowed, has_bias, has_cap)
    ]
    limit = SHARED_LIMITS.get(capability, 99 << 10)
    for each in found:
        if each.spilled_bytes or each.shared_bytes > limit:
            raise ValueError(
                f"{each.name} does not fit a card of capability {capability}: it spills {each.spilled_bytes} bytes a thread and asks for "
                f"{each.shared_bytes} bytes of shared memory of {limit}. Use training.kernels: reference, or a smaller head size"
            )
    return found


def configurations(
    num_heads: int,
    num_keys: int,
    block_size: int,
    head_size: int,
    windowed: bool,
    has_bias: bool,
    has_cap: bool,
) -> list[tuple[Any, dict[str, Any], dict[str, int]]]:
    """Every kernel of a drafter with its compile-time arguments and the options that it is launched with."""
    sizes = attention_tiles.tile_sizes(num_heads, num_keys, block_size, head_size)
    switches = {"HAS_WINDOW": windowed, "UPCAST": False}
    found: list[tuple[Any, dict[str, Any], dict[str, int]]] = []
    for kernel, used, of_context in (
        (triton_attention.forward_kernel, sizes, False),
        (triton_attention.backward_block_kernel, attention_tiles.backward_block_sizes(sizes), False),
        (triton_attention.backward_context_kernel, attention_tiles.backward_context_sizes(sizes), True),
    ):
        warps = attention_tiles.num_warps(sizes, of_context)
        found.append(
            (kernel, {**used, **switches}, {"num_warps": warps, "num_stages": triton_attention.NUM_STAGES})
        )
    flags = {"HAS_BIAS": has_bias, "HAS_CAP": has_cap, "BLOCK": triton_loss.BLOCK}
    for kernel in (triton_loss.softmax_tile_kernel, triton_loss.divergence_row_kernel):
        found.append((kernel, flags, {"num_warps": triton_loss.NUM_WARPS}))
    return found


_TYPES = {
    "labels_ptr": torch.int64, "rows_ptr": torch.int64, "starts_ptr": torch.int64, "anchors_ptr": torch.int64,
    "from_ptr": torch.int32, "to_ptr": torch.int32, "agree_ptr": torch.int8, "logits_ptr": torch.float32, "lse_ptr": torch.float32,
    "delta_ptr": torch.float32, "drafted_ptr": torch.float32, "target_ptr": torch.float32, "losses_ptr": torch.float32,
    "highest_ptr": torch.float32, "total_ptr": torch.float32, "label_ptr": torch.float32, "shrink_ptr": torch.float32,
    "slope_ptr": torch.float32,
}  # fmt: skip
"""Types of pointers that don't follow the states' type."""
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def source_of(kernel: Any, arguments: dict[str, Any], capability: int) -> ASTSource:
    """What a launch with these arguments compiles: the binder of Triton's own launcher says so, without a card.

    Args:
        kernel: a function under `triton.jit`.
        arguments: every argument by name, tensors or `MockTensor` for pointers.
    """
    backend = make_backend(GPUTarget("cuda", capability, 32))
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = binder(**arguments)
    _, signature, constants, attributes = kernel._pack_args(backend, {}, bound, specialization, options)
    return ASTSource(kernel, signature, constants, attributes)


def planned_source(kernel: Any, capability: int, dtype: str, constants: dict[str, Any]) -> ASTSource:
    """What every launch of a drafter's kernel compiles, however many anchors, rows or entries there are.

    Args:
        constants: the compile-time arguments; those that the kernel does not have are left out.
    """
    arguments: dict[str, Any] = {}
    for name in kernel.arg_names:
        if name in constants:
            arguments[name] = constants[name]
        elif name.endswith("_ptr"):
            # without a bias, launches pass the float32 logits in its place
            plain = _DTYPES[dtype] if name != "bias_ptr" or constants["HAS_BIAS"] else torch.float32
            arguments[name] = MockTensor(_TYPES.get(name, plain))
        else:
            arguments[name] = 1.0 if name in ("scale", "softcap") else 16
    return source_of(kernel, arguments, capability)


def _compile(
    kernel: Any, capability: int, dtype: str, constants: dict[str, Any], options: dict[str, int]
) -> Compiled:
    source = planned_source(kernel, capability, dtype, constants)
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
