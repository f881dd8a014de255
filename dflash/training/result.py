"""What a finished training leaves: the drafter, its tables, and an account of what it trained on."""

import json
from collections import Counter
from typing import Any

from dflash.model.drafter_files import save_drafter, write_json
from dflash.training.drafter_loop import DrafterLoop
from dflash.training.log import METRICS, consumed_samples, read_log, write_tables
from dflash.training.parts import Rank


def write_result(rank: Rank, loop: DrafterLoop, num_failed_saves: int) -> None:
    """Write drafter.safetensors, drafter.json, the tables and fit.json; what the run ran on goes to measured/."""
    folder, logs = rank.job.result, rank.job.state / "log"
    write_tables(logs, folder, rank.drafter.config.block_size)
    save_drafter(folder, rank.drafter.config, rank.ends.facts, dict(rank.drafter.named_parameters()))
    write_json(folder / "fit.json", account(rank, loop))
    write_json(
        folder / "measured" / "run.json",
        {
            "topologies": loop.position.topologies,
            "device": str(rank.device),
            "ranks": [
                json.loads((logs / f"machine-{number}.json").read_text()) | {"rank": number}
                for number in range(rank.topology.num_ranks)
            ],
            "failed_saves": num_failed_saves,
            "seconds": sum(row["seconds"] for row in read_log(logs / METRICS)),
        },
    )


def account(rank: Rank, loop: DrafterLoop) -> dict[str, Any]:
    """Figures of the whole run, and what became of every planned sample."""
    rows = list(read_log(rank.job.state / "log" / METRICS))
    heldout = [row["heldout"] for row in rows if "heldout" in row]
    tokens = {
        name: sum(row[name] for row in rows)
        for name in ("useful_tokens", "padded_tokens", "samples", "anchors")
    }
    cut = sum(row["cut_anchors"] for row in rows)
    lost, doubled = lost_and_doubled(rank)
    return {
        "num_steps": loop.position.step,
        "skipped_steps": loop.position.num_bad,
        "plan_id": rank.data.plan.plan_id,
        **tokens,
        "cut_anchors": cut,
        # Where the cap of a micro-batch bit, anchors depend on the batches, and two runs are not paired.
        "paired": cut == 0,
        "lost_samples": lost,
        "doubled_samples": doubled,
        "heldout": heldout[-1] if heldout else None,
        "best_acceptance": loop.position.best_acceptance,
    }


def lost_and_doubled(rank: Rank) -> tuple[int, int]:
    """Samples that the plan's steps hold but no drafter trained on, and the times that one was trained on too often."""
    planned = Counter(
        (step.epoch, int(sample))
        for step in rank.data.stream.steps(0)
        for cell in step.cells
        for sample in cell.batch.sample_ids
    )
    trained = Counter(consumed_samples(rank.job.state / "log"))
    return (planned - trained).total(), (trained - planned).total()
