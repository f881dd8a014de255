"""An epoch as a table with a row a micro-batch, for people and for diagnostics."""

import numpy as np
import polars as pl

from dflash.batching.batch import EpochIndex
from dflash.batching.plan import Plan
from dflash.batching.steps import training_order

EPOCH_COLUMNS = {
    "step": pl.Int64,
    "cell": pl.Int64,
    "bucket": pl.Int64,
    "rows": pl.Int64,
    "width": pl.Int64,
    "samples": pl.Int64,
    "useful_tokens": pl.Int64,
    "padded_tokens": pl.Int64,
    "anchors": pl.Int64,
}
"""epoch-NNNN.parquet: micro-batches in training order. An empty cell has 0 rows. `padded_tokens` is rows x width,
`anchors` the expected ones before any cap of the micro-batch."""


def epoch_index(plan: Plan, epoch: int) -> EpochIndex:
    """All cells of an epoch in training order, empty ones included."""
    return training_order(plan.policy, plan.mixing, plan.num_cells, epoch)


def epoch_table(
    index: EpochIndex, lengths_N: np.ndarray, anchors_N: np.ndarray, num_cells: int
) -> pl.DataFrame:
    """The table of an epoch (`EPOCH_COLUMNS`).

    Args:
        index: cells in training order.
        lengths_N: tokens of every sample of the data set.
        anchors_N: expected anchors of every sample.
        num_cells: cells of a step.
    """
    place = np.arange(len(index.rows))
    return pl.DataFrame(
        {
            "step": place // num_cells,
            "cell": place % num_cells,
            "bucket": index.buckets,
            "rows": index.rows,
            "width": index.widths,
            "samples": np.diff(index.offsets),
            "useful_tokens": sums(lengths_N[index.sample_ids_N], index.offsets),
            "padded_tokens": index.rows * index.widths,
            "anchors": sums(anchors_N[index.sample_ids_N], index.offsets),
        },
        schema=EPOCH_COLUMNS,
    )


def sums(values_N: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sums of consecutive groups, int64; empty groups give 0."""
    cumulative = np.concatenate([[0], np.cumsum(values_N, dtype=np.int64)])
    return cumulative[offsets[1:]] - cumulative[offsets[:-1]]
