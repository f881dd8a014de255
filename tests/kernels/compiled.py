"""Run by `test_ahead` in a process of its own, without Triton's interpreter: compiles kernels for cards that are not here.

Prints a line a card and shape: registers a thread and KiB of shared memory of each kernel. Fails where one spills or
asks for more shared memory than the card has.
"""

import sys
from itertools import product

from dflash.kernels.ahead import compile_all

CAPABILITIES = (80, 90, 120)
# query heads, key heads, block, head size
SHAPES = [
    (32, 8, 16, 128),
    (6, 2, 8, 32),
    (16, 8, 16, 64),
    (40, 8, 16, 128),
    (64, 8, 16, 64),
    (32, 4, 16, 128),
    (28, 4, 16, 128),
    (32, 32, 16, 128),
    (16, 16, 16, 80),
    (24, 8, 16, 96),
    (14, 2, 16, 64),
    (8, 4, 16, 256),
    (32, 8, 4, 128),
    (32, 8, 8, 128),
    (32, 8, 32, 128),
]

# Its forward kernel spills 8 bytes a thread on these cards, so `compile_all` (and preflight) refuses it there.
REFUSED = {120: [(16, 16, 16, 80)]}


def main(shapes: list[tuple[int, int, int, int]], dtypes: tuple[str, ...], extras: tuple[bool, ...]) -> None:
    """Compile and print; `compile_all` raises where something does not fit.

    Args:
        extras: with or without a window, a biased and a capped head.
    """
    for capability, shape, dtype, extra in product(CAPABILITIES, shapes, dtypes, extras):
        if shape in REFUSED.get(capability, []):
            continue
        found = compile_all(capability, *shape, dtype, extra, extra, extra)
        text = ", ".join(f"{each.name} {each.registers} {each.shared_bytes / 1024:.0f}" for each in found)
        print(f"sm_{capability} {shape} {dtype} {'all extras' if extra else 'plain'}: {text}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["quick"]:
        main(SHAPES[:1], ("bf16",), (False,))
    else:
        main(SHAPES, ("bf16", "fp16"), (False, True))
