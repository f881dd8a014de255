"""Tiles and warps of the Triton attention: found by compiling for sm_80, sm_90 and sm_120 and reading spills.

`tests/kernels/test_ahead.py` compiles every shipped shape again.
"""

import triton

TILE_QUERIES = 64
"""Queries of a tile at most, unless one anchor alone has more."""
TILE_KEYS = 4096
"""Context keys of a step of the walk x padded head size."""
LARGEST_TILE = 1 << 14
"""Queries of a tile x padded head size at most: what the registers of a program hold without spilling."""


def tile_sizes(num_heads: int, num_keys: int, block_size: int, head_size: int) -> dict[str, int]:
    """The compile-time sizes of a model's kernels: K, G, L, D, TA anchors and R queries of a tile, C, BD, BN.

    Raises:
        ValueError: the queries of one anchor and key head do not fit a program.
    """
    group = num_heads // num_keys
    anchors = max(1, TILE_QUERIES // (group * block_size))
    queries = max(16, triton.next_power_of_2(anchors * group * block_size))
    padded = max(16, triton.next_power_of_2(head_size))
    if queries * padded > LARGEST_TILE:
        raise ValueError(
            f"training.kernels: triton cannot hold {group} query heads a key head x blocks of {block_size} x heads of {head_size} in "
            f"registers ({queries} x {padded} is above {LARGEST_TILE}); use smaller blocks, more key heads, or training.kernels: reference"
        )
    return {
        "K": num_keys,
        "G": group,
        "L": block_size,
        "D": head_size,
        "TA": anchors,
        "R": queries,
        "C": max(16, triton.next_power_of_2(anchors * block_size)),
        "BD": padded,
        "BN": max(16, min(32, TILE_KEYS // padded)),
    }


def backward_block_sizes(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of the kernel of the queries' gradients: small heads take longer steps, or registers spill."""
    return {**sizes, "BN": 64} if sizes["BD"] <= 32 else sizes


def backward_context_sizes(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of the kernel of the context's gradients: beside several anchors, long stretches spill on sm_120."""
    return {**sizes, "BN": 16} if sizes["TA"] > 1 and sizes["R"] * sizes["BD"] >= LARGEST_TILE // 2 else sizes


def num_warps(sizes: dict[str, int], of_context: bool = False) -> int:
    """Warps of a program.

    Args:
        of_context: for the kernel of the context's gradients, which holds two sums of keys.
    """
    # a tile of several anchors holds what tells them apart as well: with 4 warps half the largest tile spills on sm_120
    crowded = of_context or sizes["TA"] > 1
    return 8 if sizes["R"] * sizes["BD"] >= LARGEST_TILE // (2 if crowded else 1) else 4
