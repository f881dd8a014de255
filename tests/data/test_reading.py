"""Every format gives the same rows; a row that can't be read is counted, never lost."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data.reading import read_rows

ROWS = [{"messages": [{"role": "user", "content": f"é {number}"}]} for number in range(5)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write(folder: Path, kind: str) -> Path:
    path = folder / f"rows.{kind}"
    table = pa.Table.from_pylist(ROWS)
    if kind == "jsonl":
        path.write_bytes(LINES)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(LINES))
    elif kind == "jsonl.zst":
        path.write_bytes(zstandard.ZstdCompressor().compress(LINES))
    elif kind == "parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        path = folder / f"{kind}.arrow"
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow", "stream"])
def test_every_format_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    rows = list(read_rows(write(tmp_path, kind)))
    assert [row.fields for row in rows] == ROWS
    assert [row.number for row in rows] == list(range(5))


def test_text_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line\nline\n")
    assert [row.fields for row in read_rows(tmp_path / "a.txt")] == [{"text": "line\nline\n"}]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"")), max_size=12))
def test_no_line_crashes_or_disappears(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    rows = list(read_rows(path))
    assert [row.number for row in rows] == list(range(len(lines)))
    assert all((row.fields is None) == (row.reason is not None) for row in rows)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is something else entirely, and long enough")
    with pytest.raises(ValueError, match=f"{name} can't be read"):
        list(read_rows(tmp_path / name))


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(ValueError, match=r"a\.csv has a format that is not read; these are"):
        list(read_rows(tmp_path / "a.csv"))
