"""The export stage's work, on a folder as `fit` leaves it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dflash.model.drafter_files import save_drafter
from tests.model.tiny import tiny_drafter, tiny_target
from workflow_scripts.export_drafter import work


def exported(folder: Path, formats: list[str], dtype: str = "bfloat16", **wishes: Any) -> dict[str, Any]:
    target = tiny_target()
    drafter = tiny_drafter(target, **wishes)
    save_drafter(folder / "fit", drafter.config, target.facts, drafter.state_dict())
    (folder / "out").mkdir()
    settings = {"export": {"formats": formats, "dtype": dtype}}
    stage: Any = SimpleNamespace(settings=settings, inputs={"fit": folder / "fit"}, folder=folder / "out")
    work(stage)
    return json.loads((folder / "out" / "export.json").read_text())


def test_both_layouts_hold_the_same_weights(tmp_path: Path) -> None:
    assert exported(tmp_path, ["zlab", "speculators"]) == {"formats": ["zlab", "speculators"], "notices": []}
    fitted = load_file(tmp_path / "fit" / "drafter.safetensors")
    for layout in ("zlab", "speculators"):
        weights = load_file(tmp_path / "out" / layout / "model.safetensors")
        assert weights.keys() == fitted.keys()
        assert all(torch.equal(weights[name], fitted[name].bfloat16()) for name in fitted)


def test_only_what_is_asked_for_and_notices_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = exported(tmp_path, ["zlab"], "float32", sliding_window=8)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["export.json", "zlab"]
    assert len(report["notices"]) == 1 and report["notices"][0].startswith("sliding-window layers: SGLang")
    assert "export: sliding-window layers" in capsys.readouterr().out
