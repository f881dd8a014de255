"""A pipeline of real processes whose ranks sleep instead of computing, over the production channel on gloo."""

import json
import multiprocessing
import os
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dflash.batching.dealing import deal_drafters, deal_targets
from dflash.planning.simulation import Played, Work, play
from dflash.transfer.channel import Expected, Link, PacketReceiver, PacketSender
from dflash.transfer.roles import Topology

TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Synthetic:
    """What is played. work: cells in plan order with the seconds that each side sleeps."""

    topology: Topology
    work: Work
    ring_packets: int
    packet_elements: int

    @staticmethod
    def make(
        topology: str,
        generator: np.random.Generator,
        *,
        num_steps: int,
        cells_per_step: int,
        target_seconds: float,
        drafter_seconds: float,
        ring_packets: int,
        packet_elements: int,
    ) -> "Synthetic":
        """Cells whose times lie between half and one and a half of the means, dealt as a training deals them."""
        ranks = Topology.parse(topology)
        step_C = np.repeat(np.arange(num_steps), cells_per_step)
        target_C = target_seconds * generator.uniform(0.5, 1.5, len(step_C))
        drafter_C = drafter_seconds * generator.uniform(0.5, 1.5, len(step_C))
        work = Work(
            step_C=step_C,
            target_C=deal_targets(target_C, ranks.num_targets),
            drafter_C=np.concatenate(
                [deal_drafters(each, ranks.num_drafters) for each in np.split(drafter_C, num_steps)]
            ),
            target_seconds_C=target_C,
            drafter_seconds_C=drafter_C,
            transfer_seconds_C=np.zeros(len(step_C)),
            useful_tokens_C=np.ones(len(step_C), np.int64),
        )
        return Synthetic(ranks, work, ring_packets, packet_elements)


@dataclass(frozen=True)
class Ran:
    """What came out of real processes.

    Attributes:
        seconds: from the start that all ranks share to the end of the last drafter.
        alone_seconds: of the slower side, run without a channel.
        taken: cells that each drafter took, in its order, as the packets themselves said.
        target_seconds_C, drafter_seconds_C: how long each sleep really took; on a busy machine longer than asked for.
    """

    seconds: float
    alone_seconds: float
    taken: list[list[int]]
    target_seconds_C: np.ndarray
    drafter_seconds_C: np.ndarray


def played(synthetic: Synthetic, ran: Ran) -> Played:
    """The simulator's word on a run, from the service times that the run had."""
    ranks = synthetic.topology
    return play(
        replace(
            synthetic.work,
            target_seconds_C=ran.target_seconds_C,
            drafter_seconds_C=ran.drafter_seconds_C,
        ),
        ranks.num_targets,
        ranks.num_drafters,
        send_places=synthetic.ring_packets,
        receive_places=synthetic.ring_packets,
        step_seconds=0.0,
    )


def run(synthetic: Synthetic, folder: Path) -> Ran:
    """Run it once: both sides alone, at the same time, then joined.

    Raises:
        RuntimeError: a rank failed.
    """
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("forkserver")
    # One clean process imports everything; its forks start in no time.
    context.set_forkserver_preload(["benchmarks.synthetic"])
    ranks = [
        context.Process(target=_rank, args=(synthetic, number, folder))
        for number in range(synthetic.topology.num_ranks)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError(f"ranks ended with {[rank.exitcode for rank in ranks]}")
    reports = [json.loads((folder / f"{number}.json").read_text()) for number in range(len(ranks))]
    drafters = reports[synthetic.topology.num_targets :]
    return Ran(
        max(each["seconds"] for each in drafters),
        max(each["alone_seconds"] for each in reports),
        [each["taken"] for each in drafters],
        _by_cell(reports[: synthetic.topology.num_targets], len(synthetic.work.step_C)),
        _by_cell(drafters, len(synthetic.work.step_C)),
    )


def _by_cell(reports: list[dict[str, Any]], num_cells: int) -> np.ndarray:
    """Seconds of every cell, from the ranks that worked on them."""
    slept = {int(cell): seconds for each in reports for cell, seconds in each["slept"].items()}
    return np.array([slept[cell] for cell in range(num_cells)])


def _sleep(seconds: float) -> float:
    """Sleep, and tell how long it took."""
    began = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - began


def _rank(synthetic: Synthetic, number: int, folder: Path) -> None:
    torch.set_num_threads(1)
    topology = synthetic.topology
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=number, world_size=topology.num_ranks
    )
    group = dist.group.WORLD
    assert group is not None
    data, credits = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
    drafters = dist.new_group(topology.drafter_ranks, backend="gloo")
    link = Link(data, credits, torch.device("cpu"), TIMEOUT)
    role = topology.role(number)
    work = synthetic.work
    if role == "target":
        mine = np.flatnonzero(work.target_C == number)
        seconds_C = work.target_seconds_C
    else:
        mine = np.flatnonzero(topology.num_targets + work.drafter_C == number)
        seconds_C = work.drafter_seconds_C
    dist.barrier()
    began = time.monotonic()
    if role == "target":
        for cell in mine:
            time.sleep(seconds_C[cell])
    else:
        for step in np.unique(work.step_C):
            for cell in mine[work.step_C[mine] == step]:
                time.sleep(seconds_C[cell])
            dist.barrier(group=drafters)
    alone = time.monotonic() - began
    slept: dict[int, float] = {}
    report: dict[str, object] = {"alone_seconds": alone, "taken": [], "slept": slept}
    if role == "target":
        sender = PacketSender(link, synthetic.ring_packets, synthetic.packet_elements, torch.int32)
        dist.barrier()
        for cell in mine:
            slept[int(cell)] = _sleep(seconds_C[cell])
            sender.reserve()[:] = int(cell)
            sender.commit(
                Expected(topology.drafter_rank(int(work.drafter_C[cell])), synthetic.packet_elements)
            )
        sender.close()
    else:
        expected = (Expected(int(work.target_C[cell]), synthetic.packet_elements) for cell in mine)
        receiver = PacketReceiver(
            link, synthetic.ring_packets, synthetic.packet_elements, torch.int32, expected
        )
        taken = []
        dist.barrier()
        began = time.monotonic()
        for step in np.unique(work.step_C):
            for cell in mine[work.step_C[mine] == step]:
                packet, _ = receiver.take()
                slept[int(cell)] = _sleep(seconds_C[cell])
                first, last = int(packet[0]), int(packet[-1])
                taken.append(first if first == last else -1)
                receiver.release()
            dist.barrier(group=drafters)
        report |= {"seconds": time.monotonic() - began, "taken": taken}
    dist.barrier()
    (folder / f"{number}.json").write_text(json.dumps(report))
    # Destructors of the groups may wait for ranks that are gone.
    os._exit(0)
