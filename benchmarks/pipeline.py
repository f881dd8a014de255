"""The pipeline with real processes: actual rate beside min(supply, demand) and the simulator.

    python benchmarks/pipeline.py [--real]

With synthetic service times:
Every rank is a process; targets and drafters sleep instead of computing, with times that vary from cell to cell, and
send real packets over gloo through the production channel. Both sides are also run alone, with the same sleeps and no
channel: that is supply and demand. The simulator is given the sleeps as they came out: on a busy machine a sleep takes
longer than asked for, and what is checked is the schedule.

With --real: the demo target and a drafter of two layers, one process and one pinned core each, which share the memory
bus; supply and demand are what `snakemake advise` measures, one side at a time, on one core.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

MEAN_SECONDS = 0.02
PACKET_ELEMENTS = 1 << 16
RING_PACKETS = 8
CELLS_PER_STEP = 8
NUM_STEPS = 16
# Topology, then the mean seconds of a target's and of a drafter's cell in units of MEAN_SECONDS.
CASES = [
    ("targets: 1, drafters: 1", 1.0, 1.0),
    ("targets: 1, drafters: 1", 2.0, 1.0),
    ("targets: 1, drafters: 1", 1.0, 2.0),
    ("targets: 3, drafters: 1", 3.0, 1.0),
    ("targets: 3, drafters: 2", 3.0, 2.0),
]
ANCHOR_SHARES = [0.5, 0.1]
"""With real models: the drafter is the slower side, and both are about as fast."""


def main() -> None:
    """Print a line for every case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--real", action="store_true", help="real small models instead of sleeps")
    options = parser.parse_args()
    if options.real:
        real(options.repeats)
    else:
        synthetic_cases(options.repeats)


def real(repeats: int) -> None:
    """One target, one drafter, of the demo's size."""
    from benchmarks.small_models import prepare, run

    for anchor_share in ANCHOR_SHARES:
        with tempfile.TemporaryDirectory() as folder:
            job = prepare(Path(folder) / "data", RING_PACKETS, anchor_share)
            runs = [run(job, Path(folder) / str(number)) for number in range(repeats)]
        for ran in runs:
            told = ran.predicted
            print(
                f"anchors at {anchor_share:g}: alone supply {told.supply:,.0f}, demand {told.demand:,.0f} useful tokens/s; "
                f"together {ran.tokens_per_second:,.0f}, {ran.share:.3f} of the smaller (at least 0.85); "
                f"predicted {told.tokens_per_second / ran.tokens_per_second:.3f} of that",
                flush=True,
            )


def synthetic_cases(repeats: int) -> None:
    """Every case with sleeps."""
    from benchmarks.synthetic import Synthetic, played, run

    print(f"{RING_PACKETS} packets a ring, {NUM_STEPS} steps of {CELLS_PER_STEP} cells, median of {repeats}")
    for topology, target, drafter in CASES:
        synthetic = Synthetic.make(
            topology,
            np.random.default_rng(0),
            num_steps=NUM_STEPS,
            cells_per_step=CELLS_PER_STEP,
            target_seconds=target * MEAN_SECONDS,
            drafter_seconds=drafter * MEAN_SECONDS,
            ring_packets=RING_PACKETS,
            packet_elements=PACKET_ELEMENTS,
        )
        with tempfile.TemporaryDirectory() as folder:
            runs = [run(synthetic, Path(folder) / str(number)) for number in range(repeats)]
        actual = statistics.median(each.seconds for each in runs)
        alone = statistics.median(each.alone_seconds for each in runs)
        simulated = statistics.median(played(synthetic, each).total_seconds / each.seconds for each in runs)
        print(
            f"{topology}, target {target:g}, drafter {drafter:g}: "
            f"actual / min(supply, demand) {alone / actual:.3f} (at least 0.95), simulated / actual time {simulated:.3f} "
            f"(0.95 to 1.05), {actual:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
