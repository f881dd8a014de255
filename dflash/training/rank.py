"""One rank of a training: from the job to its last step. The same program on every rank; the topology says the rest."""

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from dflash.model.device import device_of
from dflash.model.drafter_files import write_json
from dflash.training.checkpoint import Checkpoint, check_same_run, newest, read_checkpoint
from dflash.training.devices import machine
from dflash.training.job import Job
from dflash.training.joining import Place, join
from dflash.training.log import cut_logs
from dflash.training.meters import Meter
from dflash.training.parts import Rank, drafter_loop, leader_of, target_loop
from dflash.training.result import write_result
from dflash.training.stopping import Stopping
from dflash.training.watchdog import Watchdog, die_with_parent
from dflash.training.world import ends_of, identity_of, new_drafter, open_data, open_target
from dflash.transfer.roles import Topology


def run_rank(job: Job, place: Place | None, stopping: Stopping) -> int:
    """Train until the last step or until told to stop. Gives the exit status: 0, or `stopping.status()`.

    Args:
        place: None for a run of one rank in this process.

    Raises:
        ValueError: something a user can change. RuntimeError: another rank failed.
    """
    topology = Topology.parse(job.runtime.topology)
    device = device_of(job.runtime.device, 0 if place is None else place.local_rank)
    _prepare_torch(job, topology, device)
    meter = Meter(device, whole_machine=place is None or place.local_rank == 0)
    if place is None:
        rank = open_rank(job, topology, device, None, meter, stopping)
        return work(rank, None)
    die_with_parent()
    with Watchdog(
        place.store(), place.rank, topology, meter, stopping, job.runtime.wait_timeout_seconds
    ) as watchdog:
        return work(open_rank(job, topology, device, place, meter, stopping), watchdog)


def open_rank(
    job: Job, topology: Topology, device: torch.device, place: Place | None, meter: Meter, stopping: Stopping
) -> Rank:
    """Join the others, open the data, load the target and make the drafter."""
    timeout = timedelta(seconds=job.runtime.wait_timeout_seconds)
    through_host = job.runtime.packet_path == "host"
    joined = None if place is None else join(place, topology, device, timeout, through_host)
    number = 0 if place is None else place.rank
    data = open_data(job, topology)
    role = topology.role(number)
    target, config, notices = open_target(job, torch.device("cpu") if role == "drafter" else device)
    if number == topology.leader:
        for notice in notices:
            print(f"drafter: {notice}", flush=True)
    ends = ends_of(target, device)
    drafter = new_drafter(job, config, ends).to(device)
    identity = json.loads(json.dumps(identity_of(job, data, config)))
    kept = None if role == "drafter" else target
    known = machine(role, device, target, drafter)
    return Rank(
        job, topology, number, device, joined, meter, stopping, data, ends, kept, drafter, identity, known
    )


def work(rank: Rank, watchdog: Watchdog | None) -> int:
    """Do a rank's part from the newest checkpoint on."""
    checkpoint = _newest_checkpoint(rank)
    first = 0 if checkpoint is None else checkpoint.position.step
    leads = rank.number == rank.topology.leader
    if leads:
        cut_logs(rank.job.state / "log", first)
    log = rank.job.state / "log"
    log.mkdir(parents=True, exist_ok=True)
    write_json(log / f"machine-{rank.number}.json", rank.machine)
    _meet(rank)
    if rank.topology.role(rank.number) == "target":
        return _feed(rank, first, watchdog)
    loop = drafter_loop(rank, first, checkpoint)
    leader = leader_of(rank, loop) if leads else None
    stopped = False
    rows = rank.log("ranks")
    try:
        for result in loop.run(rank.data.stream.steps(first)):
            rows.write(
                {
                    "step": result.step.step + 1,
                    "rank": rank.number,
                    "role": rank.topology.role(rank.number),
                    **rank.meter.row(),
                }
            )
            if leader is not None:
                leader.after(result)
            stopped = result.stopped and loop.position.step < rank.data.stream.num_steps
    finally:
        if leader is not None:
            leader.close()
    if stopped:
        return _stop(rank, loop.position.step, watchdog)
    # All logs are whole.
    _meet(rank)
    if leader is not None:
        with rank.meter.during("busy", "writing the result"):
            write_result(rank, loop, leader.writer.num_failed)
    return 0


def _feed(rank: Rank, first: int, watchdog: Watchdog | None) -> int:
    """A target's part. Drafters that stopped close their connections, which is no failure."""
    try:
        target_loop(rank).run(rank.data.stream.steps(first))
        _meet(rank)
    except (RuntimeError, TimeoutError):
        status = None if watchdog is None else watchdog.stop_status()
        if status is None:
            raise
        return status
    return 0


def num_threads(job: Job, topology: Topology) -> int:
    """CPU threads of a rank: what the process may use, divided by the ranks of the machine."""
    ranks = topology.local_ranks(job.runtime.num_nodes)
    return max(1, (job.runtime.num_threads or len(os.sched_getaffinity(0))) // ranks)


def _prepare_torch(job: Job, topology: Topology, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.use_deterministic_algorithms(job.training.deterministic)
    torch.set_num_threads(num_threads(job, topology))


def _newest_checkpoint(rank: Rank) -> Checkpoint | None:
    """The checkpoint to go on from; every rank reads the same file.

    Raises:
        ValueError: the checkpoint belongs to another plan, model or objective.
    """
    path = newest(rank.job.state / "checkpoints")
    if path is None:
        return None
    checkpoint = read_checkpoint(path)
    check_same_run(rank.identity, checkpoint.identity, path)
    if rank.number == rank.topology.leader:
        print(f"going on from step {checkpoint.position.step} of {rank.data.stream.num_steps}", flush=True)
    return checkpoint


def _meet(rank: Rank) -> None:
    """Wait for all ranks."""
    if rank.joined is not None:
        dist.barrier(group=rank.joined.everyone)


def _stop(rank: Rank, step: int, watchdog: Watchdog | None) -> int:
    """Drafters stop alike; the leader, which has saved, tells the targets."""
    status = rank.stopping.status()
    if rank.number == rank.topology.leader:
        print(
            f"saved at step {step} of {rank.data.stream.num_steps}; run the same command to go on", flush=True
        )
        if watchdog is not None:
            watchdog.stopped(status)
    if rank.joined is not None and rank.joined.drafters is not None:
        # No drafter closes its connections before targets can know why.
        dist.barrier(group=rank.joined.drafters)
    return status


def end(job: Job, place: Place) -> NoReturn:
    """Be a rank in this process, and end it. Destructors of the groups would wait for ranks that may be gone."""
    status = 1
    try:
        stopping = Stopping(job.runtime.wall_time_seconds)
        stopping.listen()
        status = run_rank(job, place, stopping)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    end(Job.load(Path(sys.argv[1])), Place.from_launcher())
