"""The generated files are what the models say."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from dflash.config.reference import reference_text, schema_text
from dflash.config.root import resolve

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.yaml"))


def test_schema_and_reference_page_are_up_to_date() -> None:
    assert (ROOT / "config" / "schema.json").read_text() == schema_text(), "run `make config`"
    assert (ROOT / "config" / "README.md").read_text() == reference_text(), "run `make config`"


def test_the_check_fails_on_drift(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workflow_scripts.write_reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0


def test_the_schema_accepts_the_default_and_refuses_a_typo() -> None:
    schema = json.loads(schema_text())
    default = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    jsonschema.validate(default, schema)
    with pytest.raises(jsonschema.ValidationError, match="num_bukets"):
        jsonschema.validate(default | {"batching": {"num_bukets": 3}}, schema)


def merged(base: dict, over: dict) -> dict:
    """As Snakemake lays a second config file over the first."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_config_over_the_default(path: Path) -> None:
    default = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    example = yaml.safe_load(path.read_text())
    _, settings = resolve(merged(default, example))
    # an example's list of experiments replaces the default's
    assert list(settings) == [each["name"] for each in example["experiments"]]


def test_every_setting_says_what_it_is_for() -> None:
    assert "|  |" not in reference_text()
