"""The gradients of a step in one flat float32 buffer, and their sum over the drafters in a fixed order.

Everything that drafters must agree on travels in the same buffer: the sums of every cell, a flag for steps that are
not finite, and one for stopping. So they decide alike, by the same bits.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

CELL_SUMS = ("loss_sum", "weight", "anchors", "slots", "cut_anchors")
"""What a drafter reports of a cell: weighted loss, static weight, anchors, supervised slots, anchors over the cap."""
FLAGS = ("bad", "stop")


class StepBuffer:
    """Gradients [P], sums of the step's cells [G, len(CELL_SUMS)] and flags, as views of one float32 buffer."""

    def __init__(self, parameters: Sequence[nn.Parameter], num_cells: int, num_drafters: int) -> None:
        num_weights = sum(each.numel() for each in parameters)
        size = num_weights + num_cells * len(CELL_SUMS) + len(FLAGS)
        # A multiple of the drafters, so that each sums an equal share.
        padded = -(-size // num_drafters) * num_drafters
        self.flat = torch.zeros(padded, dtype=torch.float32, device=parameters[0].device)
        self.weights_P = self.flat[:num_weights]
        self.cells_GC = self.flat[num_weights : size - len(FLAGS)].view(num_cells, len(CELL_SUMS))
        self.flags = self.flat[size - len(FLAGS) : size]
        self.parts: list[Tensor] = []
        place = 0
        for each in parameters:
            self.parts.append(self.flat[place : place + each.numel()].view(each.shape))
            each.grad = self.parts[-1]
            place += each.numel()

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Add the gradients of a cell, in the order of the parameters."""
        torch._foreach_add_(self.parts, list(gradients))

    def raise_flag(self, name: str) -> None:
        """Tell all drafters something about this step."""
        self.flags[FLAGS.index(name)] = 1.0

    def read(self) -> tuple[Tensor, dict[str, bool], float]:
        """After the sum: the cells' sums on the CPU, the flags, and the norm of the gradients. One wait for the device."""
        read = torch.cat(
            [self.cells_GC.flatten(), self.flags, torch.linalg.vector_norm(self.weights_P)[None]]
        ).cpu()
        flags = {name: bool(read[self.cells_GC.numel() + place] != 0) for place, name in enumerate(FLAGS)}
        return read[: self.cells_GC.numel()].view(self.cells_GC.shape), flags, float(read[-1])


def sum_in_order(flat: Tensor, group: dist.ProcessGroup | None, timeout: timedelta) -> None:
    """Sum a buffer over the ranks of a group, in place, always in the order of the ranks.

    Every rank sums an equal share of the buffer from all ranks and gives the result to all. Unlike with an all-reduce,
    the order of additions depends on neither the algorithm nor the machines, so the same drafters give the same bits.

    Args:
        flat: its size is a multiple of the group's ranks.
        group: None for a single rank.
    """
    if group is None:
        return
    num_ranks = group.size()
    shares = torch.empty_like(flat)
    _finish(dist.all_to_all_single(shares, flat, group=group, async_op=True), timeout)
    rows = shares.view(num_ranks, -1)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    _finish(dist.all_gather(list(flat.view(num_ranks, -1)), total, group=group, async_op=True), timeout)


def _finish(work: dist.Work | None, timeout: timedelta) -> None:
    assert work is not None
    work.wait(timeout)
