"""The live view follows a log that grows, is torn, and is cut."""

import json
from pathlib import Path
from typing import Any

import pytest

from dflash.report.live import Follower, running, sparkline, view, watch
from dflash.store.lease import acquire


def row(step: int, **changes: Any) -> dict[str, Any]:
    cell = {
        "cell": 0,
        "bucket": step % 3,
        "width": 64,
        "rows": 4,
        "useful_tokens": 200,
        "anchors": 9,
        "loss_sum": 30.0,
        "weight": 10.0,
    }
    return {
        "step": step, "epoch": 0, "loss": 3.0 + 2 / step, "grad_norm": 1.0, "learning_rate": 0.01, "useful_tokens": 200,
        "padded_tokens": 256, "samples": 4, "anchors": 9, "skipped": False, "seconds": 0.5, "cells": [cell],
    } | changes  # fmt: skip


def write_training(store: Path, rows: list[dict[str, Any]]) -> Path:
    folder = store / "fit" / "abc"
    log = folder / "state" / "log"
    log.mkdir(parents=True)
    (log / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    rank = {"step": 1, "rank": 0, "role": "both", "busy_seconds": 0.4, "blocked_empty_seconds": 0.1, "blocked_full_seconds": 0.0,
            "queued_bytes": 0.0, "energy_joules": None, "memory_bytes": 2_000_000}  # fmt: skip
    (log / "ranks-0.jsonl").write_text(json.dumps(rank) + "\n")
    (folder / "components.json").write_text(json.dumps({"settings.training.num_steps": 100}))
    return folder


def test_a_training_is_shown(tmp_path: Path) -> None:
    rows = [row(step) for step in range(1, 61)]
    rows[39]["heldout"] = {"loss": 2.5, "acceptance": 2.1}
    rows[59]["heldout"] = {"loss": 2.4, "acceptance": 1.9}
    folder = write_training(tmp_path, rows)
    lease = acquire(folder / "lock", "fit [mine]")
    try:
        (training,) = running(tmp_path)
        text = view(training)
    finally:
        lease.release()
    assert "fit [mine]  [##################............] step 60 of 100, 20.0 s left" in text
    assert "400 useful, 512 padded tokens/s, padding efficiency 78.1%" in text
    assert "held-out loss 2.400, acceptance length 1.900 (best 2.10)" in text
    assert "both 0: busy 80%, waits for work 20%, for room 0%; 2 MB, power unknown" in text
    assert "verdict  " in text


def test_a_training_nobody_works_on_is_not_shown(tmp_path: Path) -> None:
    write_training(tmp_path, [row(1)])
    assert list(running(tmp_path)) == []


def test_nothing_to_watch_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing is being trained in .*; start it with: snakemake train"):
        watch(tmp_path, 1.0, once=True)


def test_watch_prints_what_it_sees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_training(tmp_path, [row(1, loss=None, skipped=True)])
    lease = acquire(folder / "lock", "fit [mine]")
    try:
        watch(tmp_path, 1.0, once=True)
    finally:
        lease.release()
    assert "step 1 of 100" in (shown := capsys.readouterr().out) and "loss     unknown" in shown


def test_a_follower_reads_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    follower = Follower(path)
    assert follower.read() == [{"a": 1}]
    with path.open("a") as file:
        file.write("2}\n")
    assert follower.read() == [{"a": 1}, {"a": 22}]


def test_a_cut_log_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    follower = Follower(path)
    follower.read()
    other = tmp_path / "other"
    other.write_text('{"a": 3}\n{"a": 4}\n{"a": 5}\n')
    other.replace(path)
    assert follower.read() == [{"a": 3}, {"a": 4}, {"a": 5}]


def test_sparkline() -> None:
    assert sparkline([3, 2, 1]) == "█▅▁"
    assert sparkline([1, float("nan"), 1]) == "▁x▁"
    assert sparkline([float("nan")]) == "" == sparkline([])
    assert len(sparkline(list(range(999)))) == 50
