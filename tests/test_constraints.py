"""The pinned versions exist, as wheels and together, for every Python that we support."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line)
# Published as pure Python source alone; installing builds the wheel.
SOURCE_ONLY = "connection_pool"
UNREACHABLE = re.compile(
    "Failed to establish|name resolution|Network is unreachable|No matching distribution .* connection"
)
LIGHT_ROOMS = ("config", "store", "batching")


def requirements() -> list[str]:
    extras = [each for names in PROJECT["optional-dependencies"].values() for each in names]
    return [*PROJECT["dependencies"], *extras]


def plain(name: str) -> str:
    return re.split(r"[<>=!~; \[]", name)[0].lower().replace("_", "-")


def pip(*words: str, python: str = sys.executable) -> None:
    done = subprocess.run(
        [python, "-m", "pip", *words], capture_output=True, text=True, timeout=800, check=False
    )
    if UNREACHABLE.search(done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr


def interpreter(version: str) -> str:
    """A Python of this version that runs, from the path or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for command in (f"python{version}", *map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}"))):
        try:
            if (
                subprocess.run([command, "-c", ""], capture_output=True, timeout=60, check=False).returncode
                == 0
            ):
                return command
        except FileNotFoundError:
            continue
    pytest.skip(f"Python {version} is not installed")


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_the_constraints_resolve(version: str, tmp_path: Path) -> None:
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), f"{SOURCE_ONLY}=={PINS[SOURCE_ONLY]}")
    pip(
        "install", "--dry-run", "--quiet", "--only-binary=:all:", "--find-links", str(tmp_path),
        "--target", str(tmp_path / "nowhere"), "--python-version", version,
        "--constraint", str(CONSTRAINTS), *requirements(),
    )  # fmt: skip


def test_every_requirement_is_pinned_and_no_pin_names_a_place_or_a_local_build() -> None:
    assert {plain(each) for each in requirements()} <= {plain(each) for each in PINS}
    assert not [pin for pin in PINS.values() if "+" in pin]
    assert "://" not in CONSTRAINTS.read_text()


@pytest.mark.full
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_what_loads_no_torch_works_on_a_newer_python(version: str, tmp_path: Path) -> None:
    subprocess.run([interpreter(version), "-m", "venv", tmp_path / "new"], check=True, timeout=300)
    python = str(tmp_path / "new" / "bin" / "python")
    heavy = {"torch", "triton", "transformers", "snakemake", "accelerate"}
    light = [each for each in PROJECT["dependencies"] if plain(each) not in heavy]
    tools = ["pytest", "pytest-timeout", "hypothesis", "scipy", "jsonschema"]
    pip("install", "--quiet", "--constraint", str(CONSTRAINTS), *light, *tools, python=python)
    words = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/{room}" for room in LIGHT_ROOMS),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout
