"""From the rows of a source file to its token shard; rows in = samples + rejected rows."""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa

from dflash.data.dialects import SAMPLED_ROWS, BadRow, find_dialect, to_messages
from dflash.data.reading import Raw, Row, parse, read_chunks, read_rows
from dflash.data.rendering import Rendering
from dflash.data.shards import Sample, count_duplicates, record_batch, write_batches
from dflash.data.split import prompt_bytes, split_of
from dflash.data.workers import in_order

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
    mask_token: int | None = None
    """Token id that no sample may hold, for it stands for what the drafter has to find."""


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


@dataclass
class Chunk:
    """What became of some rows of a file: samples as a record batch (or none), rejected rows as lines, and counts."""

    batch: pa.RecordBatch | None
    rejected: list[str]
    counts: Counts


def encode_file(
    path: Path,
    folder: Path,
    rendering: Rendering,
    rules: Rules,
    num_workers: int = 1,
    progress_seconds: float = math.inf,
) -> Counts:
    """Encode one file into a folder: `samples.arrow`, `rejected.jsonl`, `counts.json`.

    Args:
        num_workers: processes that encode; the output is the same bytes for any number.
        progress_seconds: time between lines of progress.

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
    work = ChunkEncoder(path, dialect, rendering, rules)
    chunks = in_order(work, read_chunks(path), num_workers)
    with (folder / "rejected.jsonl").open("w", encoding="utf-8") as side:
        batches = _gathered(chunks, counts, side, progress_seconds)
        write_batches(folder / "samples.arrow", batches, {"file": path.name, "dialect": dialect})
    counts.duplicates = count_duplicates(folder / "samples.arrow", counts.samples)
    counts.rejected = dict(sorted(counts.rejected.items()))
    _check(path, counts, rules, rendering, first[0])
    (folder / "counts.json").write_text(json.dumps(asdict(counts), indent=1) + "\n")
    return counts


def _gathered(
    chunks: Iterable[Chunk], counts: Counts, side: IO[str], progress_seconds: float
) -> Iterator[pa.RecordBatch]:
    """The record batches of all chunks; what else they hold goes to `counts` and the side file of rejected rows."""
    began = said = time.monotonic()
    for chunk in chunks:
        for name in ("rows", "samples", "tokens", "supervised", "too_long_samples", "too_long_tokens"):
            setattr(counts, name, getattr(counts, name) + getattr(chunk.counts, name))
        for reason, number in chunk.counts.rejected.items():
            counts.rejected[reason] = counts.rejected.get(reason, 0) + number
        side.writelines(chunk.rejected)
        if chunk.batch is not None:
            yield chunk.batch
        now = time.monotonic()
        if now - said >= progress_seconds:
            said = now
            rate = counts.rows / (now - began)
            print(f"{counts.file}: {counts.rows} rows, {counts.tokens} tokens, {rate:.0f} rows/s", flush=True)


@dataclass(frozen=True)
class ChunkEncoder:
    """Encodes chunks of one file's rows; goes to worker processes whole."""

    path: Path
    dialect: str
    rendering: Rendering
    rules: Rules

    def __call__(self, chunk: tuple[int, list[Raw]]) -> Chunk:
        """Encode some raw rows; the first has the given number.

        Raises:
            ValueError: see `encode_file`.
        """
        first, raws = chunk
        counts = Counts(self.path.name, self.dialect, rows=len(raws))
        reasons: Counter[str] = Counter()
        rejected, samples = [], []
        for row in map(parse, range(first, first + len(raws)), raws):
            try:
                samples += self._samples(row, counts)
            except BadRow as error:
                reasons[str(error).split("\n")[0]] += 1
                shown = json.dumps(row.fields, ensure_ascii=True, default=str)[:EXAMPLE_CHARACTERS]
                line = json.dumps({"row": row.number, "reason": str(error), "begin": shown}) + "\n"
                rejected.append(line)
        counts.rejected = dict(reasons)
        counts.samples = len(samples)
        counts.tokens = sum(len(each.ids) for each in samples)
        counts.supervised = sum(int(each.mask.sum()) for each in samples)
        return Chunk(record_batch(samples) if samples else None, rejected, counts)

    def _samples(self, row: Row, counts: Counts) -> list[Sample]:
        if row.fields is None:
            raise BadRow(row.reason or "unreadable")
        ids, mask, prompt = _encoded(row.fields, self.dialect, self.rendering)
        if self.rules.mask_token is not None and (ids == self.rules.mask_token).any():
            raise BadRow(f"the mask token {self.rules.mask_token} stands in the row")
        pieces = _fitted(ids, mask, self.rules, counts, f"{self.path}, row {row.number}")
        split = split_of(prompt, self.rules.validation_share, self.rules.test_share)
        return [
            Sample(part_ids, part_mask, split, _key(part_ids, part_mask), row.number, part)
            for part, (part_ids, part_mask) in enumerate(pieces)
        ]


def _encoded(
    fields: Mapping[str, Any], dialect: str, rendering: Rendering
) -> tuple[np.ndarray, np.ndarray, bytes]:
    """Tokens, mask, and the bytes that decide the split."""
    if dialect == "tokens":
        return _given_tokens(fields, rendering.num_tokens)
    if dialect == "text":
        text = fields.get("text")
        if not isinstance(text, str) or not text.strip():
            raise BadRow("text is missing, empty or no text")
        ids, mask = rendering.tokens(text, [(0, len(text))])
        return ids, mask, text.encode("utf-8", errors="surrogatepass")
    messages = to_messages(fields, dialect)
    # regenerated rows say whether their last answer met the limit of tokens
    ids, mask = rendering.tokens(*rendering.render(messages, is_cut=fields.get("cut") is True))
    if not mask.any():
        raise BadRow(NOTHING_SUPERVISED)
    return ids, mask, prompt_bytes(messages)


def _given_tokens(fields: Mapping[str, Any], num_tokens: int) -> tuple[np.ndarray, np.ndarray, bytes]:
    given = fields.get("input_ids")
    marks = fields.get("loss_mask")
    if marks is None and isinstance(fields.get("labels"), list):
        marks = [int(label != -100) for label in fields["labels"]]
    if not isinstance(given, list) or not isinstance(marks, list) or len(given) != len(marks) or not given:
        raise BadRow("input_ids and loss_mask (or labels) are no lists of one length")
    if any(type(token) is not int or not 0 <= token < num_tokens for token in given):
        raise BadRow("input_ids holds something that is no token id of the target's vocabulary")
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
