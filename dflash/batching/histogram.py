"""Lengths and supervised counts of all samples, and their histogram, from the token shards' columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

SPLITS = ("train", "validation", "test")
"""Names of the shards' split numbers."""
HISTOGRAM_COLUMNS = {
    "source": pl.String,
    "split": pl.String,
    "length": pl.Int32,
    "samples": pl.Int64,
    "supervised": pl.Int64,
}
"""histogram.parquet: samples of a source and split that have a length, and their supervised tokens."""
LENGTH_COLUMNS = {"length": pl.Int32, "supervised": pl.Int32}
"""lengths.parquet: a row a sample of the training split, in the order of sample ids."""
_LARGEST = 2**31 - 1


def measure(shards: Mapping[str, Sequence[Path]], split: str = "train") -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read the length columns of all shards; no token is read.

    Args:
        shards: Arrow files of every source, both in the order of sample ids.
        split: the split whose samples are planned.

    Returns:
        The histogram over all splits (`HISTOGRAM_COLUMNS`) and the lengths of `split` (`LENGTH_COLUMNS`).

    Raises:
        ValueError: a length or supervised count is null, not a whole number, negative or too large; names the file,
            the column and the first rows.
    """
    histograms = [pl.DataFrame(schema=HISTOGRAM_COLUMNS)]
    lengths = [pl.DataFrame(schema=LENGTH_COLUMNS)]
    number = SPLITS.index(split)
    for source, paths in shards.items():
        for path in paths:
            table = pl.scan_ipc(path).select("length", "supervised", "split").collect()
            for column in LENGTH_COLUMNS:
                check_counts(table[column], where=f"{path.name}, column {column!r}")
            lengths.append(
                table.filter(pl.col("split") == number).select(pl.col(list(LENGTH_COLUMNS)).cast(pl.Int32))
            )
            histograms.append(_histogram(table, source))
    keys = ["source", "split", "length"]
    merged = pl.concat(histograms).group_by(keys).agg(pl.col("samples").sum(), pl.col("supervised").sum())
    return merged.sort(keys), pl.concat(lengths)


def _histogram(table: pl.DataFrame, source: str) -> pl.DataFrame:
    split = pl.col("split").replace_strict(dict(enumerate(SPLITS)), return_dtype=pl.String)
    grouped = table.group_by("split", "length").agg(
        pl.len().cast(pl.Int64).alias("samples"), pl.col("supervised").sum().cast(pl.Int64)
    )
    return grouped.select(
        pl.lit(source).alias("source"), split, pl.col("length").cast(pl.Int32), "samples", "supervised"
    )


def check_counts(values: pl.Series, where: str) -> None:
    """Refuse what cannot be a count of tokens.

    Raises:
        ValueError: null, NaN, fractional, negative or above 2^31 - 1, with the first five rows; nothing is clipped.
    """
    if not values.dtype.is_numeric():
        if values.dtype == pl.Null and values.len() == 0:
            return
        raise ValueError(f"{where}: type {values.dtype} is not a number of tokens; give whole numbers")
    faults: list[tuple[str, pl.Series]] = [("null", values.is_null())]
    if values.dtype.is_float():
        faults.append(("NaN or infinite", ~values.is_finite()))
        faults.append(("fractional", values != values.round()))
    faults.append(("negative", values < 0))
    faults.append((f"above {_LARGEST}", values > _LARGEST))
    for name, fault in faults:
        rows = np.flatnonzero(fault.fill_null(False).to_numpy())[:5].tolist()
        if rows:
            raise ValueError(
                f"{where}: {int(fault.sum())} values are {name}, first in rows {rows}; "
                f"allowed are whole numbers from 0 to {_LARGEST}"
            )


def total(histogram: pl.DataFrame, split: str = "train") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths (int64, increasing), samples and supervised tokens of one split over all sources."""
    # The columns are picked by name before anything is counted: a user's column may be called anything.
    of_split = histogram.filter(pl.col("split") == split)
    merged = (
        of_split.group_by("length").agg(pl.col("samples").sum(), pl.col("supervised").sum()).sort("length")
    )
    length, samples, supervised = (
        merged[name].to_numpy().astype(np.int64) for name in ("length", "samples", "supervised")
    )
    return length, samples, supervised
