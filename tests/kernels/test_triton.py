"""The Triton kernels under the interpreter, in a process of its own: a jitted function is bound when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_kernels_agree_with_float64_references() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.interpreted"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    errors = {name: float(error) for error, name in (line.split(" ", 1) for line in done.stdout.splitlines())}
    assert len(errors) == 48 * 2 + 24
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] < 1e-4, f"{worst}: {errors[worst]}"
