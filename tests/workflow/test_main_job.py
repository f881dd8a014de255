"""The real pipeline, small: from a few conversations to a drafter, its acceptance, its exports and its page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml
from safetensors import safe_open

ROOT = Path(__file__).parents[2]
SNAKEMAKE = Path(sys.executable).with_name("snakemake")
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


def conversations(number: int) -> list[dict[str, object]]:
    """Prompts of growing length, and answers that repeat them backwards."""
    rows = []
    for each in range(number):
        words = [WORDS[(each * 7 + place * 3) % len(WORDS)] for place in range(2 + each % 23)]
        prompt = {"role": "user", "content": f"{each}: " + " ".join(words)}
        rows.append({"messages": [prompt, {"role": "assistant", "content": " ".join(reversed(words))}]})
    return rows


def config_of(folder: Path, **sections: dict[str, object]) -> Path:
    source = {"name": "chats", "location": "chats.jsonl"}
    small: dict[str, object] = {
        "data": {"sources": [source], "max_length": 128, "test_share": 0.1, "validation_share": 0.1},
        "regeneration": {"engine": "off"},
        "batching": {"budget_tokens": 256},
        "training": {"num_steps": 6, "heldout_interval_steps": 3, "heldout_samples": 4},
        "evaluation": {"num_prompts": 3, "max_new_tokens": 8, "temperatures": [0.0]},
        "experiments": [{"name": "default"}],
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(small | sections))
    return path


def snakemake(folder: Path, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    command = [
        str(SNAKEMAKE),
        "-s",
        str(ROOT / "Snakefile"),
        "--cores",
        "1",
        *words,
        "--configfile",
        "small.yaml",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def test_from_conversations_to_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "it's a project"
    folder.mkdir()
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in conversations(120)))
    config_of(folder)
    done = snakemake(folder, "train")
    assert done.returncode == 0, done.stdout + done.stderr
    results = folder / "results" / "default"

    summary = json.loads((results / "evaluate" / "evaluation.json").read_text())
    assert summary["identical"] == dict.fromkeys(("dflash", "untrained", "prompt_lookup"), 3)
    acceptance = pl.read_parquet(results / "evaluate" / "acceptance.parquet")
    assert acceptance["value"].min() >= 1
    metrics = pl.read_parquet(results / "fit" / "metrics.parquet")
    assert metrics["step"].to_list() == [1, 2, 3, 4, 5, 6]
    with safe_open(results / "export_drafter" / "zlab" / "model.safetensors", "pt") as weights:
        assert "layers.1.self_attn.q_proj.weight" in list(weights.keys())
    page = (results / "draw_report" / "report.html").read_text()
    assert "acceptance" in page.lower()

    again = snakemake(folder, "train")
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout + again.stderr


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"batching": {"num_bukets": 3}},
            "config: batching.num_bukets is not a setting; did you mean 'num_buckets'?",
        ),
        (
            {"data": {"sources": [{"name": "chats", "location": "nothere.jsonl"}]}},
            "chats has the location 'nothere.jsonl', where no file is",
        ),
        ({"target": "no/such/folder"}, "'no/such/folder'"),
    ],
)
def test_a_mistake_is_the_last_thing_that_is_said(tmp_path: Path, sections: dict, said: str) -> None:
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in conversations(4)))
    config_of(tmp_path, **sections)
    done = snakemake(tmp_path, "plan")
    assert done.returncode != 0
    last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-1]
    assert said in last
    assert "Traceback" not in done.stdout + done.stderr


def test_an_empty_source_stops_with_its_name_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text("")
    config_of(tmp_path)
    done = snakemake(tmp_path, "plan")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "chats" in said and "Traceback" not in said
    assert not (tmp_path / "results" / "default" / "encode" / "chats.json").exists()
    # the next run goes on once there is something
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in conversations(60)))
    done = snakemake(tmp_path, "plan")
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_write_permission_one_message_says_so(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in conversations(4)))
    config_of(tmp_path)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    command = ["setpriv", "--reuid", "65534", "--clear-groups", str(SNAKEMAKE), "-s", str(ROOT / "Snakefile")]
    done = subprocess.run(
        [*command, "plan", "--configfile", "small.yaml"],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": "/tmp"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "ermission denied" in said
