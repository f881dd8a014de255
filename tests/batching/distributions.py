"""The three length distributions that planners are measured on."""

from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

FIXTURE = Path(__file__).parents[1] / "data" / "stdlib_lengths.parquet"
NAMES = ("lognormal", "bimodal", "stdlib")


@cache
def histogram(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Distinct lengths and counts: exp(N(6.2, 1.1)); 70 % N(250, 80) and 30 % N(5500, 1200); the standard library."""
    rng = np.random.default_rng(0)
    if name == "stdlib":
        table = pl.read_parquet(FIXTURE).sort("length")
        return table["length"].cast(pl.Int64).to_numpy(), table["count"].cast(pl.Int64).to_numpy()
    if name == "lognormal":
        lengths = np.exp(rng.normal(6.2, 1.1, 1_000_000))
    else:
        short = rng.random(1_000_000) < 0.7
        lengths = np.where(short, rng.normal(250, 80, 1_000_000), rng.normal(5500, 1200, 1_000_000))
    return np.unique(np.clip(np.round(lengths), 4, 8192).astype(np.int64), return_counts=True)


def samples(name: str, number: int, seed: int = 0) -> np.ndarray:
    """int32 lengths drawn from a distribution."""
    widths, counts = histogram(name)
    return np.random.default_rng(seed).choice(widths, number, p=counts / counts.sum()).astype(np.int32)
