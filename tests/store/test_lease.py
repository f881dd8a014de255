"""A lock that nobody has to clear, whoever held it."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dflash.store import lease
from dflash.store.alive import identity_of, is_gone, this_process
from dflash.store.lease import HeldError, acquire, holder_of

HOLD = """
import sys, time
from pathlib import Path
from dflash.store.lease import acquire
held = acquire(Path(sys.argv[1]), "test")
print("held", flush=True)
time.sleep(100)
"""


def held_by_another(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def rewrite(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = held_by_another(path)
    try:
        with pytest.raises(HeldError, match=rf"process {process.pid} on .* \(test\)"):
            acquire(path, "mine")
    finally:
        kill(process)
    # kill -9 leaves the file; it holds nothing any more.
    assert path.exists() and holder_of(path) is None
    acquire(path, "mine").release()
    assert not list(tmp_path.iterdir())


def test_a_reused_process_number_is_another_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = acquire(path, "mine")
    assert is_gone(this_process()) is False
    rewrite(path, started="1")
    assert holder_of(path) is None
    held.release()


def test_a_zombie_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    who = identity_of(process.pid)
    deadline = time.monotonic() + 60
    while not is_gone(who):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.wait()


def test_another_machine_is_judged_by_its_heartbeat_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    acquire(path, "mine")._released.set()
    rewrite(path, host="elsewhere")
    assert holder_of(path) is not None
    with pytest.raises(HeldError, match="on elsewhere"):
        acquire(path, "mine")
    long_ago = time.time() - lease.SILENT_SECONDS - 5
    os.utime(path, (long_ago, long_ago))
    assert holder_of(path) is None
    acquire(path, "mine").release()


def test_a_holder_keeps_its_heart_beating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    path = tmp_path / "lock"
    held = acquire(path, "mine")
    os.utime(path, (0, 0))
    deadline = time.monotonic() + 60
    while path.stat().st_mtime == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    held.release()


def test_a_released_lock_of_somebody_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = acquire(path, "mine")
    rewrite(path, token="another's")
    held.release()
    assert path.exists()


@pytest.mark.parametrize("links", [True, False])
def test_one_of_many_gets_it_and_all_get_it_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def refuse(*_: object) -> None:
            raise PermissionError("no hard links here")

        monkeypatch.setattr(os, "link", refuse)
    path, inside, most = tmp_path / "lock", 0, 0

    def work() -> None:
        nonlocal inside, most
        held = acquire(path, "mine", wait_seconds=120)
        inside += 1
        most = max(most, inside)
        time.sleep(0.005)
        inside -= 1
        held.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == 1 and not path.exists()


def test_a_dead_holders_lock_is_taken_by_one_of_many(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = held_by_another(path)
    kill(process)
    won: list[int] = []

    def work(number: int) -> None:
        try:
            held = acquire(path, "mine")
        except HeldError:
            return
        won.append(number)
        time.sleep(1.0)
        held.release()

    threads = [threading.Thread(target=work, args=(each,)) for each in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(won) == 1
