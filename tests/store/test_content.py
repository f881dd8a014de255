"""Digests of files, remembered no longer than they are true; copies that share nothing."""

import os
import time
from pathlib import Path

import pytest

from dflash.store import content
from dflash.store.canonical import canonical, digest_of, read_json, write_json
from dflash.store.content import RACY_NS, ContentIndex, copy_file, is_unchanged, sha256_of, stat_of


def settle(path: Path) -> None:
    """Wait until a change of the file would move its times."""
    while time.time_ns() - stat_of(path)[3] <= RACY_NS:
        time.sleep(0.02)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    read: list[Path] = []

    def reading(path: Path) -> str:
        read.append(path)
        return sha256_of(path)

    monkeypatch.setattr(content, "sha256_of", reading)
    return read


def test_a_file_is_read_once_over_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 100_000)
    settle(path)
    read = counted(monkeypatch)
    for _ in range(3):
        index = ContentIndex(tmp_path / "index.json")
        assert index.sha256(path) == sha256_of(path)
        index.save()
    assert read == [path]


@pytest.mark.parametrize("keep_time", [False, True])
def test_a_change_is_seen_whatever_its_time(tmp_path: Path, keep_time: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    settle(path)
    index = ContentIndex(tmp_path / "index.json")
    before = index.sha256(path)
    status = path.stat()
    path.write_text("new")
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert index.sha256(path) != before


def test_a_file_written_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    index = ContentIndex(tmp_path / "index.json")
    index.sha256(path)
    index.save()
    assert read_json(tmp_path / "index.json") is None


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def slow(each: Path) -> str:
        digest = sha256_of(each)
        each.write_text("longer than before")
        return digest

    monkeypatch.setattr(content, "sha256_of", slow)
    with pytest.raises(OSError, match="changed while it was read"):
        ContentIndex(tmp_path / "index.json").sha256(path)


def test_a_copy_is_another_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    copy_file(tmp_path / "a", tmp_path / "deep" / "b")
    (tmp_path / "deep" / "b").write_text("edited")
    assert (tmp_path / "a").read_text() == "text"
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["b"]


def test_missing_and_replaced_by_a_folder_are_changes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    digest = sha256_of(tmp_path / "a")
    assert is_unchanged(tmp_path / "a", None, digest)
    assert not is_unchanged(tmp_path / "nothing", None, digest)
    (tmp_path / "folder").mkdir()
    assert not is_unchanged(tmp_path / "folder", None, digest)


def test_one_value_has_one_spelling() -> None:
    assert canonical({"b": 1, "a": [1.5, None, "ä"]}) == '{"a":[1.5,null,"ä"],"b":1}'
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 1.0})
    assert digest_of({"a": True}) != digest_of({"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))


def test_a_torn_file_is_no_value(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": 1})
    assert read_json(tmp_path / "a.json") == {"a": 1}
    (tmp_path / "a.json").write_bytes((tmp_path / "a.json").read_bytes()[:4])
    assert read_json(tmp_path / "a.json") is None
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    assert read_json(tmp_path / "a.json") is None
