"""Tables for a look at the data: sources, lengths, rejected rows and rendered samples. Drawn by the report."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dflash.data.shards import Shards
from dflash.data.split import SPLIT_NAMES

SAMPLES_SHOWN = 10


def look_at(sources: Mapping[str, Path], tokenizer: Any, folder: Path) -> str:
    """Write `sources.parquet`, `lengths.parquet`, `rejected.parquet` and `samples.jsonl`; gives a short text table.

    Args:
        sources: folder of each source's shards and rejected rows.
        tokenizer: turns tokens into the text that is shown.
        folder: where the tables go.
    """
    rows, lengths, rejected, shown = [], [], [], []
    for source, place in sources.items():
        rejected += _rejected(source, place)
        for split in SPLIT_NAMES:
            shards = Shards(sorted(place.glob("*.arrow")), split)
            tokens, supervised = int(shards.lengths_N.sum()), int(shards.supervised_N.sum())
            rows.append(
                {
                    "source": source,
                    "split": split,
                    "samples": len(shards),
                    "tokens": tokens,
                    "supervised": supervised,
                }
            )
            values, counts = np.unique(shards.lengths_N, return_counts=True)
            lengths += [
                {"source": source, "split": split, "length": int(value), "samples": int(count)}
                for value, count in zip(values, counts, strict=True)
            ]
            shown += [
                {"source": source, "split": split, "pieces": each} for each in _samples(shards, tokenizer)
            ]
    schema = {"source": pl.String, "split": pl.String, "length": pl.Int64, "samples": pl.Int64}
    pl.DataFrame(rows).write_parquet(folder / "sources.parquet")
    pl.DataFrame(lengths, schema=schema).write_parquet(folder / "lengths.parquet")
    pl.DataFrame(
        rejected, schema={"source": pl.String, "reason": pl.String, "rows": pl.Int64, "example": pl.String}
    ).write_parquet(folder / "rejected.parquet")
    with (folder / "samples.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps(each, ensure_ascii=False) + "\n" for each in shown[: SAMPLES_SHOWN * len(sources)]
        )
    return "\n".join(
        f"{row['source']} {row['split']}: {row['samples']} samples, {row['tokens']} tokens, {row['supervised']} supervised"
        for row in rows
    )


def _rejected(source: str, place: Path) -> list[dict[str, Any]]:
    """Rejected rows by reason, with the begin of one."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(place.glob("*.rejected.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            reason = row["reason"].split("\n")[0]
            example = f"{path.name}, row {row['row']}: {row['begin']}"
            entry = found.setdefault(
                reason, {"source": source, "reason": reason, "rows": 0, "example": example}
            )
            entry["rows"] += 1
    return list(found.values())


def _samples(shards: Shards, tokenizer: Any) -> list[list[tuple[str, bool]]]:
    """The first samples by key, as pieces of text that are supervised or not."""
    chosen = np.argsort(shards.keys_N, kind="stable")[: SAMPLES_SHOWN // len(SPLIT_NAMES) + 1]
    found = []
    for number in chosen.tolist():
        ids, mask = shards.sample(number)
        borders = np.flatnonzero(np.diff(mask)) + 1
        pieces = zip(np.split(ids, borders), np.split(mask, borders), strict=True)
        found.append(
            [(tokenizer.decode(piece.tolist()), bool(marks[0])) for piece, marks in pieces if len(piece)]
        )
    return found
