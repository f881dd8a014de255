"""From columns to a policy's shapes and arrays, and from those to the policy itself."""

from dataclasses import dataclass

import numpy as np

from dflash.batching.batch import EpochIndex, Policy
from dflash.batching.buckets import Buckets, bucket_of, bucket_order
from dflash.batching.cost import aligned, expected_anchors
from dflash.batching.description import Description, PlanConfig
from dflash.batching.indexed import Indexed, greedy_index, pool_size
from dflash.batching.keyed import key_of
from dflash.batching.packing import packed_index


@dataclass(frozen=True)
class Shape:
    """The micro-batches that a policy can make.

    Attributes:
        widths: distinct widths, increasing.
        rows: rows of a micro-batch of each width at most.
        counts: `bucketed`: samples of each bucket; else empty.
        arrays: what the policy reads, by file name.
    """

    widths: list[int]
    rows: list[int]
    counts: list[int]
    arrays: dict[str, np.ndarray]


def shape_of(lengths_N: np.ndarray, supervised_N: np.ndarray, config: PlanConfig, widths: list[int]) -> Shape:
    """Shapes and arrays of the configured policy.

    Raises:
        ValueError: the boundaries do not cover the data, or a sample does not fit the budgets.
    """
    anchors_N = expected_anchors(supervised_N, config.anchor_share, config.anchors_per_sample)
    if config.policy == "bucketed":
        return _bucketed(lengths_N, anchors_N, config, widths)
    arrays = {"lengths.i32": lengths_N, "anchors.i32": anchors_N}
    lengths = np.unique(lengths_N if config.zero_length == "keep" else lengths_N[lengths_N > 0])
    limits = config.limits
    if config.policy == "packed" and len(lengths):
        limits.max_rows(lengths[-1:])
        return Shape([limits.largest_width], [1], [], arrays)
    distinct = np.unique(aligned(lengths, config.alignment))
    return Shape(distinct.tolist(), limits.max_rows(distinct).tolist(), [], arrays)


def _bucketed(lengths_N: np.ndarray, anchors_N: np.ndarray, config: PlanConfig, widths: list[int]) -> Shape:
    """The buckets that hold samples, and all sample ids in their order."""
    check_widths(widths, int(lengths_N.max(initial=0)))
    if not widths:
        return Shape([], [], [], {"order.u32": np.zeros(0, np.uint32)})
    buckets_N = bucket_of(lengths_N, np.array(widths))
    num_buckets = len(widths)
    if config.zero_length == "drop" and not lengths_N.all():
        # Empty samples are ordered behind all buckets, where nothing looks.
        buckets_N[lengths_N == 0] = num_buckets
    order, counts = bucket_order(buckets_N, num_buckets + 1)
    used = np.flatnonzero(counts[:num_buckets])
    anchors = np.bincount(buckets_N, weights=anchors_N, minlength=num_buckets)[used]
    by_anchors = np.floor(config.budget_anchors * counts[used] / np.maximum(anchors, 1e-9)).astype(np.int64)
    used_widths = np.array(widths)[used]
    rows = np.maximum(np.minimum(config.limits.max_rows(used_widths), by_anchors), 1)
    planned = order[: int(counts[used].sum())]
    return Shape(used_widths.tolist(), rows.tolist(), counts[used].tolist(), {"order.u32": planned})


def check_widths(widths: list[int], longest: int) -> None:
    """Refuse boundaries that are not increasing or do not cover the longest sample.

    Raises:
        ValueError: names the boundaries and what is wrong.
    """
    if any(after <= before for before, after in zip([0, *widths], widths, strict=False)):
        raise ValueError(f"batching.boundaries is {widths}; the bounds must be positive and increasing")
    if len(widths) > 256:
        raise ValueError(f"batching.boundaries has {len(widths)} bounds; at most 256 are possible")
    if longest > (widths[-1] if widths else 0):
        raise ValueError(
            f"batching.boundaries is {widths}, but the longest sample has {longest} tokens; "
            f"let the last bound be at least {longest}"
        )


def policy_over(description: Description, arrays: dict[str, np.ndarray]) -> Policy:
    """The policy over its arrays."""
    config = description.config
    if config.policy == "bucketed":
        widths, rows, counts = (
            np.array(each, np.int64) for each in (description.widths, description.rows, description.counts)
        )
        return Buckets(arrays["order.u32"], widths, rows, counts, config.seed)
    lengths_N, anchors_N = arrays["lengths.i32"], arrays["anchors.i32"]
    samples_N = np.arange(len(lengths_N))
    if config.zero_length == "drop":
        samples_N = np.flatnonzero(lengths_N)
        lengths_N, anchors_N = lengths_N[samples_N], anchors_N[samples_N]
    limits = config.limits
    if config.policy == "packed":
        width = description.widths[0] if description.widths else 1

        def packed(epoch: int) -> EpochIndex:
            key = key_of(config.seed, epoch)
            return packed_index(samples_N, lengths_N, anchors_N, limits, width, config.pack_window, key)

        return Indexed(packed)
    widths_N = aligned(lengths_N, config.alignment)
    pool = pool_size(widths_N, limits, config.pool_batches)
    plan_widths = np.array(description.widths, np.int64)

    def greedy(epoch: int) -> EpochIndex:
        key = key_of(config.seed, epoch)
        return greedy_index(samples_N, widths_N, anchors_N, plan_widths, limits, config.policy, pool, key)

    return Indexed(greedy)
