"""What a user meets on a bad day: a full disk, Ctrl-C in every stage. One message, nothing half-written, it goes on."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.workflow.test_main_job import ROOT, SNAKEMAKE, config_of, conversations, snakemake

STAGES = (
    "regenerate/chats",
    "encode/chats",
    "report_data",
    "measure_lengths",
    "choose_boundaries",
    "build_plan",
    "run_preflight",
    "fit",
    "evaluate",
    "export_drafter",
    "draw_report",
)


def test_a_full_disk_is_named_and_the_next_run_goes_on(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    (small_disk / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in conversations(2500)))
    config_of(small_disk)
    done = snakemake(small_disk, "results/default/encode/chats.json")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "No space left on device" in said and "Traceback" not in said, said
    assert not (small_disk / "results" / "default" / "encode" / "chats.json").exists()
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    done = snakemake(small_disk, "results/default/encode/chats.json")
    assert done.returncode == 0, done.stdout + done.stderr


def contents(folder: Path) -> dict[str, str]:
    """The content digest of every stage but the page, which shows measured times."""
    return {
        stage: json.loads((folder / "results" / "default" / f"{stage}.json").read_text())["content"]
        for stage in STAGES[:-1]
    }


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ctrl_c_in_every_stage_is_one_word_and_the_same_command_goes_on(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    regeneration = {"engine": "in_process", "max_new_tokens": 8, "max_samples": 40}
    for folder in (undisturbed, disturbed):
        folder.mkdir()
        (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in conversations(120)))
        config_of(folder, regeneration=regeneration)
    done = snakemake(undisturbed, "train", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    command = [SNAKEMAKE, "-s", ROOT / "Snakefile", "--cores", "1", "train", "--configfile", "small.yaml"]
    for stage in STAGES:
        log = disturbed / "logs" / "default" / f"{stage}.log"
        with (disturbed / "said.txt").open("w") as said:
            running = subprocess.Popen(
                command, cwd=disturbed, stdout=said, stderr=said, start_new_session=True
            )
            end = time.monotonic() + 600
            while not (log.exists() and "to be made" in log.read_text()) and running.poll() is None:
                assert time.monotonic() < end
                time.sleep(0.02)
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGINT)
            assert running.wait(120) != 0, f"{stage} was over before Ctrl-C"
        text = (disturbed / "said.txt").read_text()
        assert "Traceback" not in text, f"{stage}: {text}"
        assert not (disturbed / "results" / "default" / f"{stage}.json").exists(), stage
        log.unlink()
    done = snakemake(disturbed, "train", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(disturbed) == contents(undisturbed)
