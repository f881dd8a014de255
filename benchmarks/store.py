"""What the store costs: a run with nothing to do over 100 experiments, and a stage that is found in the store.

    python benchmarks/store.py

The stages are the tests' tiny ones (tests/workflow/tiny.py); Snakemake, rules, config and store are the real ones.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

NUM_EXPERIMENTS = 100
REPEATS = 3


def main() -> None:
    """Print both figures."""
    from tests.workflow.tiny import Project

    with tempfile.TemporaryDirectory() as place:
        project = Project(Path(place) / "project")
        project.config["experiments"] = [{"name": "default"}] + [
            {"name": f"seed-{number}", "change": {"training": {"seed": number}}}
            for number in range(1, NUM_EXPERIMENTS)
        ]
        project.run("compare", seconds_at_most=3600.0)
        snakemake = str(Path(sys.executable).with_name("snakemake"))
        for _ in range(REPEATS):
            began = time.perf_counter()
            done = subprocess.run(
                [snakemake, "--cores", "2", "compare"],
                cwd=project.folder,
                capture_output=True,
                text=True,
                check=True,
            )
            taken = time.perf_counter() - began
            assert "Nothing to be done" in done.stdout + done.stderr
            print(f"nothing to do, {NUM_EXPERIMENTS} experiments: {taken:.2f} s (at most 5 s)", flush=True)
        for _ in range(REPEATS):
            words = ["--request", "results/default/.request/fit.json"]
            for name in ("build_plan", "start_from"):
                words += [
                    "--input",
                    name,
                    *(["results/default/build_plan.json"] if name == "build_plan" else []),
                ]
            words += [
                "--inputs",
                "encode",
                "results/default/encode/texts.json",
                "--output",
                "results/default/fit.json",
            ]
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-P", "-m", "workflow_scripts.fit", *words],
                cwd=project.folder,
                env={"PYTHONPATH": str(project.folder), "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                check=True,
            )
            taken = time.perf_counter() - began
            assert "unchanged, from the store" in done.stdout, done.stdout
            print(f"a stage that is found in the store: {taken:.2f} s (at most 0.5 s)", flush=True)


if __name__ == "__main__":
    main()
