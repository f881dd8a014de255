"""One key's folder: finished or not, never in between."""

from pathlib import Path

import pytest

from dflash.store.entry import Entry, files_under


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    made = Entry(tmp_path / "store", "fit", "0123456789abcdef" * 4)
    made.begin({"settings.a": 1})
    (made.work / "deep").mkdir()
    (made.work / "deep" / "a.txt").write_text("a")
    (made.work / "measured").mkdir()
    (made.work / "measured" / "seconds.txt").write_text("1.5")
    return made


def test_finished_means_the_mark_is_written(entry: Entry) -> None:
    assert entry.record() is None
    (entry.state / "checkpoint").write_text("half")
    record = entry.finish({"seconds": 2.0})
    assert entry.record() == record and record["seconds"] == 2.0
    assert list(record["manifest"]["files"]) == ["deep/a.txt"]
    assert sorted(files_under(entry.result)) == ["deep/a.txt", "measured/seconds.txt"]
    assert not entry.state.exists() and not entry.work.exists()


def test_measured_files_change_no_content(entry: Entry, tmp_path: Path) -> None:
    other = Entry(tmp_path / "store", "fit", "f" * 64)
    other.begin({})
    (other.work / "deep").mkdir()
    (other.work / "deep" / "a.txt").write_text("a")
    assert other.finish({})["manifest"]["content"] == entry.finish({})["manifest"]["content"]


def test_a_new_attempt_keeps_the_state_and_drops_the_half_result(entry: Entry) -> None:
    (entry.state / "checkpoint").write_text("half")
    entry.begin({"settings.a": 1})
    assert (entry.state / "checkpoint").read_text() == "half"
    assert not list(entry.work.iterdir())


@pytest.mark.parametrize("how", ["edit", "remove", "same size"])
def test_damage_is_found_by_name(entry: Entry, how: str) -> None:
    entry.finish({})
    path = entry.result / "deep" / "a.txt"
    assert entry.damaged_files() == []
    if how == "remove":
        path.unlink()
    else:
        path.write_text("b" if how == "same size" else "longer")
    assert entry.damaged_files() == ["deep/a.txt"]
    entry.drop()
    assert entry.record() is None and not entry.result.exists()


def test_a_touched_file_is_no_damage(entry: Entry) -> None:
    entry.finish({})
    (entry.result / "deep" / "a.txt").touch()
    assert entry.damaged_files() == []


def test_a_torn_mark_is_no_result(entry: Entry) -> None:
    entry.finish({})
    (entry.folder / "entry.json").write_text("{")
    assert entry.record() is None and entry.damaged_files() == []


def test_time_spent_adds_up_over_attempts(entry: Entry) -> None:
    assert entry.spent_seconds() == 0.0
    entry.spend(1.5)
    entry.begin({})
    assert entry.spent_seconds() == 1.5
