"""Rows of a source file, whatever its format. A row that can't be read is a row too, so that none disappears."""

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

FORMATS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow", ".txt")
ROWS_PER_READ = 1024
ROWS_PER_CHUNK = 512
BYTES_PER_CHUNK = 4 << 20

Raw = bytes | dict[str, Any]
"""A line of JSON, or the fields of a row of a table."""


@dataclass(frozen=True)
class Row:
    """A row of a file: its number from 0, and its fields, or why it could not be read."""

    number: int
    fields: dict[str, Any] | None
    reason: str | None = None


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, in order, streaming.

    Raises:
        ValueError: a format that is not read, or a file that is not what its name says.
    """
    for number, raw in enumerate(read_raw(path)):
        yield parse(number, raw)


def read_raw(path: Path) -> Iterator[Raw]:
    """The rows of a file, in order, streaming, as they stand: lines of JSON are not parsed yet.

    Raises:
        ValueError: a format that is not read, or a file that is not what its name says.
    """
    name = path.name.lower()
    try:
        if name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst", ".json")):
            with _opened(path) as file:
                yield from file
        elif name.endswith(".parquet"):
            yield from _rows_of(pq.ParquetFile(path).iter_batches(ROWS_PER_READ))
        elif name.endswith(".arrow"):
            yield from _rows_of(_arrow_batches(path))
        elif name.endswith(".txt"):
            yield {"text": path.read_text(encoding="utf-8", errors="replace")}
        else:
            raise ValueError(f"{path} has a format that is not read; these are: {', '.join(FORMATS)}")
    except (pa.ArrowInvalid, gzip.BadGzipFile, zstandard.ZstdError, EOFError) as error:
        raise ValueError(f"{path} can't be read: {error}; write the file again or leave it out") from None


def read_chunks(path: Path) -> Iterator[tuple[int, list[Raw]]]:
    """The raw rows in pieces of one size for one worker each, with the number of the first row; see `read_raw`."""
    first, chunk, num_bytes = 0, [], 0
    for number, raw in enumerate(read_raw(path)):
        chunk.append(raw)
        num_bytes += len(raw) if isinstance(raw, bytes) else 0
        if len(chunk) == ROWS_PER_CHUNK or num_bytes >= BYTES_PER_CHUNK:
            yield first, chunk
            first, chunk, num_bytes = number + 1, [], 0
    if chunk:
        yield first, chunk


def parse(number: int, raw: Raw) -> Row:
    """The row of a raw one."""
    if not isinstance(raw, bytes):
        return Row(number, raw)
    if not raw.strip():
        return Row(number, None, "empty line")
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return Row(number, None, f"no JSON: {type(error).__name__}")
    if isinstance(fields, dict):
        return Row(number, fields)
    return Row(number, None, f"a {type(fields).__name__}, not an object")


def _opened(path: Path) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return io.BufferedReader(gzip.open(path, "rb"))
    if path.name.endswith(".zst"):
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(path.open("rb"), closefd=True))
    return path.open("rb")


def _arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    source = pa.memory_map(str(path))
    try:
        file = pa.ipc.open_file(source)
        yield from (file.get_batch(number) for number in range(file.num_record_batches))
    except pa.ArrowInvalid:
        source.seek(0)
        yield from pa.ipc.open_stream(source)


def _rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()
