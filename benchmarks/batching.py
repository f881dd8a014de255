"""Times of the batch planner, and of other planners on the same lengths in the same process.

    python benchmarks/batching.py [--part own | large | peers]

Prints a line a figure. A planner that is not installed is named with the reason. Lengths are log-normal,
exp(N(6.2, 1.1)) clipped to [4, 8192]; the budget is 16,384 tokens.
"""

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from dflash.batching.boundaries import best_boundaries
from dflash.batching.cost import aligned
from dflash.batching.plan import Plan, PlanConfig, make_plan

BUDGET = 16_384
REPEATS = 3
NUM_PEER_SAMPLES = 1_000_000
NUM_SLOW_PEER_SAMPLES = 100_000


def lengths_of(number: int, seed: int = 0) -> np.ndarray:
    """int32 log-normal lengths, made in pieces."""
    rng = np.random.default_rng(seed)
    lengths = np.empty(number, np.int32)
    for start in range(0, number, 1 << 22):
        part = lengths[start : start + (1 << 22)]
        part[:] = np.clip(np.exp(rng.normal(6.2, 1.1, len(part))), 4, 8192)
    return lengths


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median wall-clock seconds of a call."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def widths_of(lengths_N: np.ndarray, number: int = 16) -> list[int]:
    """The best boundaries of a data set."""
    counts = np.bincount(lengths_N)
    lengths = np.flatnonzero(counts)
    widths, member = np.unique(aligned(lengths, 8), return_inverse=True)
    curve = best_boundaries(
        widths, np.bincount(member, weights=counts[lengths]), widths.astype(float), num_buckets=number
    )
    return [int(each) for each in curve.boundaries(number)]


def bucketed(lengths_N: np.ndarray) -> Plan:
    """From lengths to the first batch of the first epoch."""
    config = PlanConfig(policy="bucketed", budget_tokens=BUDGET, cells_per_step=32)
    plan = make_plan(lengths_N, lengths_N, config, widths_of(lengths_N))
    plan.batch(0, 0, 0)
    return plan


def random_batch_ms(plan: Plan, epochs: int) -> float:
    """Median milliseconds of a batch somewhere in one of some epochs."""
    rng = np.random.default_rng(0)
    taken = []
    for _ in range(300):
        epoch = int(rng.integers(epochs))
        step, cell = int(rng.integers(plan.num_steps(epoch) - 1)), int(rng.integers(plan.num_cells))
        began = time.perf_counter()
        plan.batch(epoch, step, cell)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken)) * 1000


def own_figures() -> Iterator[str]:
    """The planner by itself."""
    for number, buckets, wanted in ((8_192, 16, 0.1), (131_072, 64, 3.0)):
        rng = np.random.default_rng(0)
        widths = np.arange(1, number + 1)
        counts = rng.integers(1, 1000, number)
        prices = widths.astype(float)
        taken = seconds(
            lambda w=widths, c=counts, p=prices, k=buckets: best_boundaries(w, c, p, num_buckets=k)
        )
        yield f"boundaries of {number:,} lengths, K = {buckets}: {taken:.3f} s (at most {wanted} s)"
    lengths_N = lengths_of(10_000_000)
    yield f"bucketed, 10M samples, boundaries and first epoch: {seconds(lambda: bucketed(lengths_N)):.2f} s (at most 1 s)"
    plan = bucketed(lengths_N)
    later = [seconds(lambda e=epoch: plan.batch(e, 0, 0), 1) for epoch in range(1, 6)]
    yield f"bucketed, 10M samples, a later epoch: {np.median(later):.4f} s (at most 0.25 s)"
    yield f"bucketed, 10M samples, a random batch of any of 1,000 epochs: {random_batch_ms(plan, 1000):.2f} ms (at most 1 ms)"
    config = PlanConfig(policy="packed", budget_tokens=BUDGET, cells_per_step=32)
    packed = make_plan(lengths_N, lengths_N, config)
    yield f"packed, 10M samples, an epoch: {np.median([seconds(lambda e=e: packed.batch(e, 0, 0), 1) for e in range(3)]):.2f} s (at most 3 s)"
    yield f"packed, 10M samples, then a random batch: {random_batch_ms(packed, 1):.2f} ms (at most 1 ms)"


def large_figures() -> Iterator[str]:
    """100M samples, in a process of its own for the memory's sake."""
    lengths_N = lengths_of(100_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    began = time.perf_counter()
    plan = bucketed(lengths_N)
    taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    yield f"bucketed, 100M samples, boundaries and first epoch: {taken:.1f} s (at most 10 s), peak {peak:.2f} GB of it {before:.2f} GB lengths and libraries (at most 3 GB)"
    yield f"bucketed, 100M samples, a random batch of any of 1,000 epochs: {random_batch_ms(plan, 1000):.2f} ms (at most 1 ms)"


def transformers_grouping(lengths_N: np.ndarray) -> None:
    """transformers: batches of mean size, grouped by length inside megabatches."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    size = int(BUDGET / lengths_N.mean())
    list(LengthGroupedSampler(size, lengths=lengths_N.tolist()))


def lhotse_bucketing(lengths_N: np.ndarray) -> None:
    """lhotse: dynamic buckets of equal total length."""
    from lhotse import MonoCut
    from lhotse.dataset import DynamicBucketingSampler

    def cuts() -> Iterator[MonoCut]:
        for number, length in enumerate(lengths_N.tolist()):
            yield MonoCut(id=str(number), start=0.0, duration=float(length), channel=0)

    sampler = DynamicBucketingSampler(
        list(cuts()), max_duration=float(BUDGET), num_buckets=16, shuffle=True, seed=0
    )
    for _ in sampler:
        pass


def trl_packing(lengths_N: np.ndarray) -> None:
    """TRL: best fit decreasing over maps of 1,000 rows."""
    import datasets
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    rows = {"input_ids": [[0] * length for length in lengths_N.tolist()]}
    pack_dataset(datasets.Dataset.from_dict(rows), BUDGET)


def speculators_multipack(lengths_N: np.ndarray) -> None:
    """speculators: multipack for one rank."""
    from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

    sampler = MultipackDistributedBatchSamplerV2(
        batch_max_length=BUDGET, lengths=lengths_N.tolist(), num_replicas=1, rank=0
    )
    list(sampler)


def ours(policy: str) -> Callable[[np.ndarray], None]:
    """A whole first epoch of this planner as batches of sample ids, boundaries included."""

    def work(lengths_N: np.ndarray) -> None:
        config = PlanConfig(policy=policy, budget_tokens=BUDGET, cells_per_step=1)
        widths = widths_of(lengths_N) if policy == "bucketed" else None
        make_plan(lengths_N, lengths_N, config, widths).policy.index(0)

    return work


PEERS: tuple[tuple[str, str, Callable[[np.ndarray], None], int], ...] = (
    ("transformers' length grouping", "bucketed", transformers_grouping, NUM_PEER_SAMPLES),
    ("lhotse's dynamic bucketing", "bucketed", lhotse_bucketing, NUM_SLOW_PEER_SAMPLES),
    ("TRL's packing", "packed", trl_packing, NUM_SLOW_PEER_SAMPLES),
    ("speculators' multipack", "packed", speculators_multipack, NUM_SLOW_PEER_SAMPLES),
)


def peer_figures() -> Iterator[str]:
    """Every peer against the policy that does its work, an epoch's batches of the same lengths, side by side."""
    for name, policy, peer, number in PEERS:
        lengths_N = lengths_of(number)
        try:
            theirs = seconds(lambda p=peer, n=lengths_N: p(n), 1)
        except ImportError as error:
            yield f"{name}: not installed here ({error})"
            continue
        planner = ours(policy)
        own = seconds(lambda w=planner, n=lengths_N: w(n))
        yield f"{name}, {number:,} samples: {theirs:.2f} s; {policy}: {own:.3f} s; {theirs / own:.0f} times as fast"


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["all", "own", "large", "peers"], default="all")
    part = parser.parse_args().part
    warnings.filterwarnings("ignore")
    parts = {"own": own_figures, "large": large_figures, "peers": peer_figures}
    if part == "all":
        for each in parts:
            subprocess.run([sys.executable, __file__, "--part", each], check=True)
        return
    for line in parts[part]():
        print(line, flush=True)


if __name__ == "__main__":
    main()
