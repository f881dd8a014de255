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
    name = path.name.lower()
    try:
        if name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst", ".json")):
            yield from _json_lines(path)
        elif name.endswith(".parquet"):
            yield from _numbered(pq.ParquetFile(path).iter_batches(ROWS_PER_READ))
        elif name.endswith(".arrow"):
            yield from _numbered(_arrow_batches(path))
        elif name.endswith(".txt"):
            yield Row(0, {"text": path.read_text(encoding="utf-8", errors="replace")})
        else:
            raise ValueError(f"{path} has a format that is not read; these are: {', '.join(FORMATS)}")
    except (pa.ArrowInvalid, gzip.BadGzipFile, zstandard.ZstdError, EOFError) as error:
        raise ValueError(f"{path} can't be read: {error}; write the file again or leave it out") from None


def _json_lines(path: Path) -> Iterator[Row]:
    with _opened(path) as file:
        for number, line in enumerate(file):
            if not line.strip():
                yield Row(number, None, "empty line")
                continue
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield Row(number, None, f"no JSON: {type(error).__name__}")
                continue
            if isinstance(fields, dict):
                yield Row(number, fields)
            else:
                yield Row(number, None, f"a {type(fields).__name__}, not an object")


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


def _numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for fields in batch.to_pylist():
            yield Row(number, fields)
            number += 1
