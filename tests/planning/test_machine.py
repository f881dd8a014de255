"""Rates belong to the machine that they were measured on: another one has another key."""

import os
from pathlib import Path

import pytest

from dflash.store import request
from dflash.store.machine import machine
from dflash.store.request import Wanted, setting_of

CPU = (
    "processor\t: 0\nmodel name\t: Some Processor 9000\n\nprocessor\t: 1\nmodel name\t: Some Processor 9000\n"
)


def test_a_machine_is_its_processors_and_its_gpus(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPU)
    for number, model in enumerate(["B", "A", "B"]):
        (tmp_path / f"gpu{number}").mkdir()
        (tmp_path / f"gpu{number}" / "information").write_text(f"Model: \t\t Card {model}\nIRQ:   57\n")
    count = len(os.sched_getaffinity(0))
    told = machine(tmp_path / "cpuinfo", tmp_path)
    assert told == [f"{count} x Some Processor 9000", "1 x Card A", "2 x Card B"]
    assert machine(tmp_path / "none", tmp_path / "none") == [f"{count} x processor"]


def test_only_the_rates_see_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "machine", lambda: ["1 x Other"])
    wanted = Wanted("measure_rates", {}, "default")
    assert setting_of(wanted, "machine", "workflow_scripts.measure_rates") == ["1 x Other"]
    scripts = Path(__file__).parents[2] / "workflow_scripts"
    assert [each.stem for each in scripts.glob("*.py") if '"machine"' in each.read_text()] == [
        "measure_rates"
    ]
