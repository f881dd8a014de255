"""The loop of a target rank, and the drafter's end of the same channel."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from dflash.training.features import LocalTarget
from dflash.training.log import Log
from dflash.training.meters import Meter
from dflash.training.micro_batch import Rows, rows_of
from dflash.training.stream import Cell, Samples, Step
from dflash.transfer.channel import Expected, PacketReceiver, PacketSender
from dflash.transfer.packet import PacketLayout
from dflash.transfer.roles import Topology


def expected_of(cell: Cell, peer: int, layout: PacketLayout) -> Expected:
    """The packet of a cell."""
    return Expected(peer, layout.size(cell.batch.num_rows, cell.batch.width))


@dataclass
class TargetLoop:
    """A target rank at work. rank is its target number too."""

    rank: int
    topology: Topology
    source: LocalTarget
    sender: PacketSender
    layout: PacketLayout
    samples: Samples
    heldout: Samples
    meter: Meter
    rows_log: Log

    def run(self, steps: Iterator[Step]) -> None:
        """Compute and send the features of every cell dealt to this rank, as far ahead as the rings allow."""
        for step in steps:
            for cell in step.all_cells:
                if cell.target == self.rank:
                    self._send(cell)
            self.rows_log.write(
                {"step": step.step + 1, "rank": self.rank, "role": "target", **self.meter.row()}
            )
        with self.meter.during("blocked_full", "drafters to take the last packets"):
            self.sender.close()

    def _send(self, cell: Cell) -> None:
        with self.meter.during("busy", f"the target's forward of step {cell.step + 1}, cell {cell.number}"):
            rows, _ = rows_of(
                cell.batch, self.heldout if cell.heldout else self.samples, self.source.target.device
            )
            features_BSF, final_BSH = self.source.take(rows)
        self.meter.queued(
            self.sender.queued_packets * self.layout.num_bytes(cell.batch.num_rows, cell.batch.width)
        )
        with self.meter.during("blocked_full", f"a free slot for step {cell.step + 1}, cell {cell.number}"):
            slot = self.sender.reserve()
        with self.meter.during("busy", f"packing step {cell.step + 1}, cell {cell.number}"):
            features, final = self.layout.views(slot, *rows.ids_BS.shape)
            features.copy_(features_BSF)
            if final is not None and final_BSH is not None:
                final.copy_(final_BSH)
            self.sender.commit(expected_of(cell, self.topology.drafter_rank(cell.drafter), self.layout))


@dataclass
class ReceivedFeatures:
    """A drafter's features, from its channel."""

    receiver: PacketReceiver
    layout: PacketLayout
    meter: Meter

    def take(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """The packet of the next cell, on the device of its rows."""
        with self.meter.during(
            "blocked_empty", f"features of {rows.ids_BS.shape[0]} rows of {rows.ids_BS.shape[1]} tokens"
        ):
            packet, _ = self.receiver.take()
        self.meter.queued(self.receiver.queued_packets * packet.numel() * packet.element_size())
        features_BSF, final_BSH = self.layout.views(packet, *rows.ids_BS.shape)
        device = rows.ids_BS.device
        # where packets lie in the CPU's memory this copies, and must be through before the slot is used again
        return features_BSF.to(device), None if final_BSH is None else final_BSH.to(device)

    def release(self) -> None:
        """Its slot may receive another packet."""
        self.receiver.release()


def expected_packets(steps: Iterator[Step], drafter: int, layout: PacketLayout) -> Iterator[Expected]:
    """Every packet that a drafter receives, in its order."""
    for step in steps:
        for cell in step.all_cells:
            if cell.drafter == drafter:
                yield expected_of(cell, cell.target, layout)
