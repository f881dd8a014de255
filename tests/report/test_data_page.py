"""The page on the data, from tables of a tiny data set."""

import json
from pathlib import Path

import polars as pl
import pytest

from dflash.report.data_page import draw_data_page


def write_tables(folder: Path, rejected: int = 2) -> None:
    folder.mkdir()
    pl.DataFrame(
        {
            "source": ["chat", "chat"],
            "split": ["train", "test"],
            "samples": [90, 10],
            "tokens": [9000, 1000],
            "supervised": [4500, 400],
        }
    ).write_parquet(folder / "sources.parquet")
    pl.DataFrame(
        {
            "source": ["chat"] * 3,
            "split": ["train", "train", "test"],
            "length": [50, 150, 100],
            "samples": [45, 45, 10],
        }
    ).write_parquet(folder / "lengths.parquet")
    pl.DataFrame(
        {
            "source": ["chat", "chat"],
            "reason": ["no assistant turn", "not JSON"],
            "rows": [1, 7],
            "example": ["<i>x</i>", "{'a'"],
        }
    ).head(rejected).write_parquet(folder / "rejected.parquet")
    sample = {
        "source": "chat",
        "split": "train",
        "pieces": [["User: <b>hi</b>", False], ["Hello.", True], ["x" * 9000, False]],
    }
    (folder / "samples.jsonl").write_text(json.dumps(sample) + "\n")


def test_the_page_holds_the_tables(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables")
    text = draw_data_page(tmp_path / "tables", tmp_path / "out").read_text()
    assert "4,900 tokens, 49.0%" in text and "8 rows" in text
    assert text.index("not JSON") < text.index("no assistant turn") and "&lt;i&gt;x&lt;/i&gt;" in text
    assert '<span class="plain">User: &lt;b&gt;hi&lt;/b&gt;</span><span class="run on">Hello.</span>' in text
    assert "[cut]" in text and len(text.split("Samples</h2>")[1]) < 6000
    assert (tmp_path / "out" / "figures" / "lengths-0-light.svg").exists()


def test_nothing_rejected(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", rejected=0)
    assert "<p>None.</p>" in draw_data_page(tmp_path / "tables", tmp_path / "out").read_text()


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables")
    (tmp_path / "tables" / "lengths.parquet").unlink()
    with pytest.raises(ValueError, match=r"lengths.parquet is missing"):
        draw_data_page(tmp_path / "tables", tmp_path / "out")
