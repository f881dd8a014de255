"""Every check, with each thing missing in turn, says what is wrong and what to do."""

import os
from pathlib import Path

import pytest

from dflash.planning import preflight
from dflash.planning.preflight import Finding, Need, check

SMALL = Need("triton", 0, 1000, 2, 1000, 4)


def finding(name: str, need: Need, folder: Path, **options: object) -> Finding:
    found = {each.name: each for each in check(need, folder, folder / "cache", **options)}  # type: ignore[arg-type]
    return found[name]


def test_a_machine_that_has_everything_passes(tmp_path: Path) -> None:
    for name in ("disk", "memory", "clock", "cache", "triton"):
        assert finding(name, SMALL, tmp_path).ok, name


def test_kernels_are_only_checked_where_they_are_used(tmp_path: Path) -> None:
    names = {each.name for each in check(Need("reference", 0, 1000, 2, 1000, 4), tmp_path, tmp_path)}
    assert names == {"disk", "memory", "clock"}


@pytest.mark.parametrize(
    ("name", "need", "said"),
    [
        ("disk", Need("reference", 0, 10**15, 2, 0, 1), "GB needed for checkpoints"),
        ("memory", Need("reference", 0, 1000, 2, 10**15, 1), "GB needed beside the target"),
    ],
)
def test_too_little_is_said_in_numbers(name: str, need: Need, said: str, tmp_path: Path) -> None:
    got = finding(name, need, tmp_path)
    assert not got.ok
    assert said in got.found and got.remedy


def test_no_compiler(tmp_path: Path) -> None:
    got = finding("compiler", SMALL, tmp_path, compilers=("no-such-compiler",))
    assert (got.ok, got.found) == (False, "C compiler: none")
    assert "gcc" in got.remedy


def test_no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    got = finding("headers", SMALL, tmp_path)
    assert not got.ok and "Python.h is missing" in got.found


def test_two_tritons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        def __init__(self, name: str) -> None:
            self.name = name

    monkeypatch.setattr(
        preflight.importlib.metadata,
        "distributions",
        lambda: [Installed("triton"), Installed("pytorch-triton")],
    )
    got = finding("triton", SMALL, tmp_path)
    assert not got.ok and "pytorch-triton, triton" in got.found


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = {each.name: each for each in check(SMALL, tmp_path, tmp_path / "file" / "cache")}
    assert not found["cache"].ok
    assert "TRITON_CACHE_DIR" in found["cache"].remedy
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        found = {each.name: each for each in check(SMALL, tmp_path, tmp_path / "closed" / "cache")}
        assert not found["cache"].ok


def test_a_clock_in_the_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.time, "time", lambda: 0.0)
    assert not finding("clock", SMALL, tmp_path).ok


def test_the_limit_of_a_container_or_job_counts(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/job/step"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    assert preflight._available_memory(tmp_path) == 8_000_000 * 1024
    for folder, limit in ((group, "max"), (group.parent, "3000000")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("1000000\n")
    assert preflight._available_memory(tmp_path) == 2_000_000


def test_a_cache_that_is_a_mount_of_its_own_is_seen() -> None:
    assert preflight._file_system(Path("/proc")) == "proc"
    assert preflight._file_system(Path("/proc/self/nothing here")) == "proc"
