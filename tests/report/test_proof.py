"""The proof's table on synthetic runs: numbers in their places, claims as the comparison makes them."""

from pathlib import Path

import pytest

from benchmarks import proof
from dflash.report.sides import read_experiment, sides_of
from tests.report.test_comparison import write_sides


def test_the_config_lists_five_policies_with_three_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    monkeypatch.setattr(proof, "read_experiment", lambda name, settings, *_: seen.setdefault(name, settings))
    monkeypatch.setattr(proof, "sides_of", list)
    proof.read_sides(Path("results"))
    policies = {(each["batching"]["policy"], each["batching"]["seed"]) for each in seen.values()}
    assert policies == {
        (policy, seed) for policy in ("bucketed", "pooled", "packed", "sorted", "random") for seed in range(3)
    }
    assert all(
        each["batching"]["seed"] == each["training"]["seed"] == each["anchors"]["seed"]
        for each in seen.values()
    )
    assert {each["training"]["num_steps"] for each in seen.values()} != {None}


def test_the_table(tmp_path: Path) -> None:
    settings, fits, evaluations = write_sides(tmp_path, 0.4)
    runs = [read_experiment(name, settings[name], fits[name], evaluations[name]) for name in settings]
    sides = sides_of(runs)
    text = proof.markdown(sides, {"bucketed": 0.05, "sorted": 0.9})
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith(("| bucketed", "| sorted"))]
    assert [row[3] for row in rows] == ["0.050", "0.900"]
    speeds = [run.tokens_per_second for run in runs[:3]]
    assert rows[0][1].startswith(f"{sum(speeds) / 3:,.0f} ± ")
    assert "- sorted, held-out loss (nats): +0.4" in text and ": worse" in text


def test_a_section_is_replaced_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text(f"# Results\n\n{proof.TITLE}\n\nold\n\n## Kernels\n\nkept\n")
    proof.replace_section(path, f"{proof.TITLE}\n\nnew\n")
    text = path.read_text()
    assert (
        "old" not in text and text.count(proof.TITLE) == 1 and "new" in text and "## Kernels\n\nkept" in text
    )
