"""Which ranks are targets, drafters or both: a frozen value made from the config's `topology`."""

import math
import re
from dataclasses import dataclass
from typing import Literal

Role = Literal["target", "drafter", "both"]

_COLOCATED = re.compile(r"colocated: ([1-9]\d*)")
_SPLIT = re.compile(r"targets: ([1-9]\d*), drafters: ([1-9]\d*)")


@dataclass(frozen=True)
class Topology:
    """The ranks of a run. Targets are ranks 0 .. T-1, drafters T .. T+D-1; colocated ranks are both.

    Targets and drafters form gcd(T, D) groups that exchange nothing: every drafter is served by the targets of its
    group alone, so a drafter holds rings for few targets (7-1: one group; 6-2: two groups of 3-1; 3-2: one group).

    Attributes:
        num_targets, num_drafters: T and D; equal where colocated.
        colocated: every rank plays both.
    """

    num_targets: int
    num_drafters: int
    colocated: bool

    @staticmethod
    def parse(text: str) -> "Topology":
        """Read `targets: T, drafters: D` or `colocated: N`.

        Raises:
            ValueError: it is neither.
        """
        if found := _COLOCATED.fullmatch(text):
            return Topology(int(found[1]), int(found[1]), True)
        if found := _SPLIT.fullmatch(text):
            return Topology(int(found[1]), int(found[2]), False)
        raise ValueError(f"runtime.topology is {text!r}; write 'targets: T, drafters: D' or 'colocated: N'")

    def __str__(self) -> str:
        if self.colocated:
            return f"colocated: {self.num_drafters}"
        return f"targets: {self.num_targets}, drafters: {self.num_drafters}"

    @property
    def num_ranks(self) -> int:
        """Processes of the run."""
        return self.num_drafters if self.colocated else self.num_targets + self.num_drafters

    @property
    def num_groups(self) -> int:
        """Groups of targets and drafters that exchange nothing with each other."""
        return math.gcd(self.num_targets, self.num_drafters)

    @property
    def leader(self) -> int:
        """The rank that writes checkpoints, metrics and progress: the first drafter."""
        return self.drafter_rank(0)

    @property
    def drafter_ranks(self) -> list[int]:
        """Ranks that train, in the order in which their gradients are summed."""
        return [self.drafter_rank(drafter) for drafter in range(self.num_drafters)]

    def drafter_rank(self, drafter: int) -> int:
        """Rank of a drafter."""
        return drafter if self.colocated else self.num_targets + drafter

    def role(self, rank: int) -> Role:
        """What a rank plays."""
        if self.colocated:
            return "both"
        return "target" if rank < self.num_targets else "drafter"

    def name(self, rank: int) -> str:
        """A rank as messages call it."""
        role = self.role(rank)
        if role == "both":
            return f"rank {rank}"
        return f"rank {rank} ({role} {rank if role == 'target' else rank - self.num_targets})"

    def group_of_drafter(self, drafter: int) -> int:
        """The group that a drafter belongs to."""
        return drafter * self.num_groups // self.num_drafters

    def targets_of(self, group: int) -> list[int]:
        """The targets of a group."""
        size = self.num_targets // self.num_groups
        return list(range(group * size, (group + 1) * size))

    def local_ranks(self, num_nodes: int) -> int:
        """Ranks on each machine.

        Raises:
            ValueError: the ranks cannot be spread evenly.
        """
        if self.num_ranks % num_nodes:
            raise ValueError(
                f"runtime.topology '{self}' has {self.num_ranks} ranks, which runtime.num_nodes {num_nodes} does not divide; "
                "every machine must get as many"
            )
        return self.num_ranks // num_nodes
