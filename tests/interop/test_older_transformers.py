"""The model's own tests with the oldest transformers that the project allows, which `.venv-interop` has."""

import subprocess

import pytest

from tests.interop.test_speculators import FOLDER, PYTHON, pytestmark  # noqa: F401

OF_TRANSFORMERS = ["test_target.py", "test_rope.py", "test_drafter.py", "test_export_drafter.py"]
"""The tests that reach into transformers; the others never call it."""


@pytest.mark.timeout(200)
def test_the_model_works_with_transformers_5_19() -> None:
    tests = [str(FOLDER.parent / "model" / name) for name in OF_TRANSFORMERS]
    command = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=FOLDER.parents[1], check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
