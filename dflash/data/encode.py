"""From the rows of a source file to its token shard; rows in = samples + rejected rows."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dflash.data.dialects import SAMPLED_ROWS, BadRow, find_dialect, to_messages
from dflash.data.reading import Row, read_rows
from dflash.data.rendering import Rendering
from dflash.data.shards import Sample, write_shard
from dflash.data.split import prompt_bytes, split_of

TOO_LONG_DROPPED = "longer than data.max_length"
NOTHING_SUPERVISED = "nothing supervised"
EXAMPLE_CHARACTERS = 500
MIN_ROWS_FOR_LIMIT = 20
"""With fewer rows a single bad one would be over a limit of a few per cent; then only a file of bad rows stops."""


@dataclass(frozen=True)
class Rules:
    """What becomes a sample; plain values of the config's `data`."""

    dialect: str
    max_length: int
    too_long: Literal["error", "drop", "truncate", "split"]
    max_rejected: float
    validation_share: float
    test_share: float


@dataclass
class Counts:
    """What became of a file's rows. `too_long_*`: samples and tokens that were dropped, cut or split."""

    file: str
    dialect: str = ""
    rows: int = 0
    samples: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    supervised: int = 0
    too_long_samples: int = 0
    too_long_tokens: int = 0
    duplicates: int = 0


class _Rejected:
    """The side file: a line a rejected row, with its number, reason and begin."""

    def __init__(self, path: Path) -> None:
        self.counts: Counter[str] = Counter()
        self._file = path.open("w", encoding="utf-8")

    def add(self, row: Row, reason: str) -> None:
        self.counts[reason.split("\n")[0]] += 1
        shown = json.dumps(row.fields, ensure_ascii=True, default=str)[:EXAMPLE_CHARACTERS]
        self._file.write(json.dumps({"row": row.number, "reason": reason, "begin": shown}) + "\n")

    def close(self) -> None:
        self._file.close()


def encode_file(path: Path, folder: Path, rendering: Rendering, rules: Rules) -> Counts:
    """Encode one file into a folder: `samples.arrow`, `rejected.jsonl`, `counts.json`.

    Raises:
        ValueError: no row, no sample, too many rejected rows, a sample too long where that is an error, or masks that
            are empty throughout.
    """
    first = [row.fields for row in islice(read_rows(path), SAMPLED_ROWS) if row.fields is not None]
    if not first:
        raise ValueError(
            f"{path} has no row that can be read; it is empty or has another format than its name says"
        )
    dialect = find_dialect(first) if rules.dialect == "auto" else rules.dialect
    counts = Counts(path.name, dialect)
    rejected = _Rejected(folder / "rejected.jsonl")
    try:
        samples = _samples(path, dialect, rendering, rules, counts, rejected)
        counts.samples = write_shard(
            folder / "samples.arrow", samples, {"file": path.name, "dialect": dialect}
        )
    finally:
        rejected.close()
    counts.rejected = dict(sorted(rejected.counts.items()))
    _check(path, counts, rules, rendering, first[0])
    (folder / "counts.json").write_text(json.dumps(asdict(counts), indent=1) + "\n")
    return counts


def _samples(
    path: Path, dialect: str, rendering: Rendering, rules: Rules, counts: Counts, rejected: _Rejected
) -> Iterator[Sample]:
    seen: set[int] = set()
    for row in read_rows(path):
        counts.rows += 1
        if row.fields is None:
            rejected.add(row, row.reason or "unreadable")
            continue
        try:
            ids, mask, prompt = _encoded(row.fields, dialect, rendering)
            pieces = _fitted(ids, mask, rules, counts, f"{path}, row {row.number}")
        except BadRow as error:
            rejected.add(row, str(error))
            continue
        split = split_of(prompt, rules.validation_share, rules.test_share)
        for part, (piece_ids, piece_mask) in enumerate(pieces):
            key = _key(piece_ids, piece_mask)
            counts.duplicates += key in seen
            seen.add(key)
            counts.tokens += len(piece_ids)
            counts.supervised += int(piece_mask.sum())
            yield Sample(piece_ids, piece_mask, split, key, row.number, part)


def _encoded(
    fields: Mapping[str, Any], dialect: str, rendering: Rendering
) -> tuple[np.ndarray, np.ndarray, bytes]:
    """Tokens, mask, and the bytes that decide the split."""
    if dialect == "tokens":
        return _given_tokens(fields)
    if dialect == "text":
        text = fields.get("text")
        if not isinstance(text, str) or not text.strip():
            raise BadRow("text is missing, empty or no text")
        ids, mask = rendering.tokens(text, [(0, len(text))])
        return ids, mask, text.encode("utf-8", errors="surrogatepass")
    messages = to_messages(fields, dialect)
    ids, mask = rendering.tokens(*rendering.render(messages))
    if not mask.any():
        raise BadRow(NOTHING_SUPERVISED)
    return ids, mask, prompt_bytes(messages)


def _given_tokens(fields: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, bytes]:
    given = fields.get("input_ids")
    marks = fields.get("loss_mask")
    if marks is None and fields.get("labels") is not None:
        marks = [int(label != -100) for label in fields["labels"]]
    if not isinstance(given, list) or not isinstance(marks, list) or len(given) != len(marks) or not given:
        raise BadRow("input_ids and loss_mask (or labels) are no lists of one length")
    if any(type(token) is not int or not 0 <= token < 1 << 31 for token in given):
        raise BadRow("input_ids holds something that is no token id")
    ids, mask = np.array(given, dtype=np.int32), np.array([bool(mark) for mark in marks], dtype=np.uint8)
    if not mask.any():
        raise BadRow(NOTHING_SUPERVISED)
    return ids, mask, ids[: int(np.argmax(mask))].tobytes()


def _fitted(
    ids: np.ndarray, mask: np.ndarray, rules: Rules, counts: Counts, where: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The pieces of a sample that fit.

    Raises:
        ValueError: it is too long, and that is an error. BadRow: nothing supervised is left.
    """
    limit = rules.max_length
    if len(ids) <= limit:
        return [(ids, mask)]
    if rules.too_long == "error":
        raise ValueError(
            f"{where} has {len(ids)} tokens, more than data.max_length ({limit}); raise it, or set data.too_long"
        )
    counts.too_long_samples += 1
    if rules.too_long == "drop":
        counts.too_long_tokens += len(ids)
        raise BadRow(TOO_LONG_DROPPED)
    if rules.too_long == "truncate":
        counts.too_long_tokens += len(ids) - limit
        pieces = [(ids[:limit], mask[:limit])]
    else:
        pieces = [(ids[at : at + limit], mask[at : at + limit]) for at in range(0, len(ids), limit)]
    kept = [(piece, marks) for piece, marks in pieces if marks.any()]
    if not kept:
        raise BadRow(f"{NOTHING_SUPERVISED} within data.max_length")
    return kept


def _key(ids: np.ndarray, mask: np.ndarray) -> int:
    digest = hashlib.blake2b(ids.tobytes(), digest_size=8, key=b"sample")
    digest.update(mask.tobytes())
    return int.from_bytes(digest.digest(), "little")


def _check(
    path: Path, counts: Counts, rules: Rules, rendering: Rendering, example: Mapping[str, Any]
) -> None:
    """Raise where what came out can't be meant."""
    number = sum(counts.rejected.values())
    reasons = ", ".join(f"{reason} ({rows})" for reason, rows in counts.rejected.items())
    # what was asked for is no fault of the data
    faults = number - counts.rejected.get(TOO_LONG_DROPPED, 0)
    allowed = (
        max(1, math.floor(rules.max_rejected * counts.rows))
        if counts.rows >= MIN_ROWS_FOR_LIMIT
        else counts.rows - 1
    )
    if not counts.samples or faults > allowed:
        raise ValueError(
            f"{path}: {number} of {counts.rows} rows were rejected, more than data.max_rejected ({rules.max_rejected:g}) allows: {reasons}. "
            f"The first row reads {json.dumps(example, default=str)[:200]}"
        )
    if counts.dialect not in ("text", "tokens") and counts.supervised == counts.tokens:
        raise ValueError(
            f"{path}: every token is supervised, prompts too; the chat template marks everything as generated. "
            f"The first row renders as {rendering.render(to_messages(example, counts.dialect))[0][:200]!r}"
        )
