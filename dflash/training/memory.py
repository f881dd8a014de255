"""Out of memory, and whether a run can fit at all: said in bytes, with the setting to change."""

from dataclasses import dataclass

# Weights, gradients and AdamW's two moments in float32, and a bfloat16 copy for the products.
_TRAINED_BYTES = 4 + 4 + 8 + 2
# What the driver, the libraries and fragmentation take, as a share of the device.
_RESERVED_SHARE = 0.06


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error of PyTorch says that memory ran out, on a GPU or on the CPU."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def out_of_memory_message(side: str, num_rows: int, width: int, num_anchors: int | None, splits: bool) -> str:
    """One line: the shape that did not fit, and what to change."""
    anchors = "" if num_anchors is None else f" with {num_anchors} anchors"
    knobs = ["lower batching.budget_tokens"] + (
        [] if num_anchors is None else ["anchors.max_per_micro_batch"]
    )
    split = "" if splits else ", or set runtime.on_out_of_memory: auto_reduce"
    single = " (a single row cannot be split; lower data.max_length)" if splits else ""
    return f"out of memory on the {side}: a micro-batch of {num_rows} rows of {width} tokens{anchors}{single}; {' or '.join(knobs)}{split}"


@dataclass(frozen=True)
class Needs:
    """What a rank keeps in memory, in bytes.

    Attributes:
        target: the target's weights, or its embedding and head alone. drafter: weights, gradients, moments.
        rings: packets in flight. working: the largest micro-batch's features and states.
    """

    target: int
    drafter: int
    rings: int
    working: int

    @property
    def total(self) -> int:
        """Sum of all."""
        return self.target + self.drafter + self.rings + self.working


def drafter_bytes(num_weights: int) -> int:
    """Bytes of a drafter in training."""
    return num_weights * _TRAINED_BYTES


def check_memory(who: str, needs: Needs, capacity_bytes: int) -> None:
    """Refuse a rank that cannot fit its device, before anything is loaded.

    Raises:
        ValueError: with the bytes of every part.
    """
    usable = int(capacity_bytes * (1.0 - _RESERVED_SHARE))
    if needs.total <= usable:
        return
    parts = ", ".join(f"{name} {value:,}" for name, value in vars(needs).items() if value)
    raise ValueError(
        f"{who} needs {needs.total:,} bytes ({parts}) but has {usable:,} of {capacity_bytes:,}; split roles over more devices "
        "(runtime.topology), or lower batching.budget_tokens, runtime.ring_bytes or the drafter's size"
    )
