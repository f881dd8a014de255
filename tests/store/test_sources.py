"""What locations and targets stand for."""

from pathlib import Path

import pytest

from dflash.store.sources import folder_files, source_files, target_identity


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "data/b.jsonl",
        "data/a/x.parquet",
        "data/.hidden/y.jsonl",
        "data/notes.md",
        "data/c.jsonl.gz",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("location", "names"),
    [
        ("data", ["a/x.parquet", "b.jsonl", "c.jsonl.gz"]),
        ("data/b.jsonl", ["b.jsonl"]),
        ("data/*.jsonl", ["b.jsonl"]),
        ("data/**/*.parquet", ["a/x.parquet"]),
        ("builtin:stdlib", []),
    ],
)
def test_a_location_names_its_data_files(data: Path, location: str, names: list[str]) -> None:
    assert list(source_files("chats", location)) == names


@pytest.mark.parametrize("location", ["nothere", "data/*.arrow", "data/.hidden"])
def test_a_location_without_files_is_an_error_that_names_it(data: Path, location: str) -> None:
    (data / "data/.hidden/y.jsonl").unlink()
    with pytest.raises(ValueError, match="chats") as raised:
        source_files("chats", location)
    assert location in str(raised.value) and str(data) in str(raised.value)


def test_names_do_not_depend_on_where_the_data_lies(data: Path) -> None:
    assert list(source_files("chats", str(data / "data"))) == list(source_files("chats", "data"))


def test_a_targets_code_is_no_part_of_what_it_is(data: Path) -> None:
    for name in ("config.json", "modeling.py", ".git"):
        (data / "data" / name).write_text("x")
    assert "modeling.py" not in folder_files("target", data / "data")
    assert ".git" not in folder_files("target", data / "data")
    assert "config.json" in target_identity("data", None, data, data)


def test_a_target_that_is_not_there_is_named(data: Path) -> None:
    with pytest.raises(ValueError, match=r"target: there is no file or folder with files at 'nowhere'"):
        target_identity("nowhere", None, data, data)
