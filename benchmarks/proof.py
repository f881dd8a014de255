"""The proof experiment: what the order of the data does to speed and to learning, as measured.

    python benchmarks/proof.py [--folder FOLDER] [--configfile FILE] [--results FILE]

Trains the policies of config/examples/proof.yaml with three seeds each (what is already there is not done again) and writes their
table into benchmarks/RESULTS.md, whatever it says. A smaller config and another file of results make a rehearsal.
"""

import argparse
import json
import math
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from snakemake.utils import update_config

from dflash.config.root import resolve
from dflash.report.comparison import MIN_SEEDS, Measured, common_tokens, difference, findings, value_at
from dflash.report.comparison_page import LESS_IS_BETTER
from dflash.report.sides import Run, Side, quantities, read_experiment, sides_of
from dflash.store.reason import versions

PROJECT = Path(__file__).parents[1]
CONFIG = PROJECT / "config" / "examples" / "proof.yaml"
RESULTS = PROJECT / "benchmarks" / "RESULTS.md"
TITLE = "## What the order of the data costs"


def main() -> None:
    """Train, read, write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path.cwd(), help="where results/ lies; the current folder"
    )
    parser.add_argument("--configfile", type=Path, default=CONFIG, help="the experiments; the proof's own")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the page that gets the table")
    arguments = parser.parse_args()
    folder = arguments.folder
    command = [
        "snakemake",
        "-s",
        PROJECT / "Snakefile",
        "--directory",
        folder,
        "--cores",
        "1",
        "compare",
        "--configfile",
        arguments.configfile.absolute(),
    ]
    subprocess.run([sys.executable, "-m", *map(str, command)], check=True)
    sides = read_sides(folder / "results", arguments.configfile)
    text = markdown(sides, {side.name: variance_between_steps(folder / "results", side) for side in sides})
    replace_section(arguments.results, text)
    print(text)


def read_sides(results: Path, config: Path = CONFIG) -> list[Side]:
    """The finished runs of a config's experiments, by policy."""
    raw = yaml.safe_load((PROJECT / "config" / "config.yaml").read_text())
    update_config(raw, yaml.safe_load(config.read_text()))
    _, settings = resolve(raw)
    runs = [
        read_experiment(
            name,
            each.model_dump(mode="json", exclude={"runtime"}),
            results / name / "fit",
            results / name / "evaluate",
        )
        for name, each in settings.items()
    ]
    return sides_of(runs)


def variance_between_steps(results: Path, side: Side) -> float:
    """Mean share of the length variance that lies between steps."""
    records = [
        json.loads((results / run.name / "build_plan" / "quality.json").read_text()) for run in side.runs
    ]
    return float(np.mean([record["variance_between_steps"] for record in records]))


def markdown(sides: Sequence[Side], mixing: dict[str, float]) -> str:
    """The section of RESULTS.md: a row a policy, and what may be claimed against the first."""
    tokens, measured = quantities(sides)
    seconds = common_tokens([run.curves.seconds for side in sides for run in side.runs])
    first = sides[0]
    lines = [
        TITLE,
        "",
        f"`python benchmarks/proof.py`: the built-in default with {len(first.runs)} seeds a policy, equal data, anchors and steps. "
        f"Mean ± standard deviation over seeds. Equal tokens: at {tokens:,.0f} useful tokens; equal time: after {seconds:.0f} s of "
        "steps; both are the most that all runs reached. Acceptance is teacher-forced on the held-out samples, decoded greedily in the "
        f"last column (at the end of each run). {platform.machine()}, Python {platform.python_version()}, torch {versions()['torch']}.",
        "",
        "| policy | useful tokens/s | padding efficiency | length variance between steps | held-out loss, equal tokens | "
        "held-out loss, equal time | acceptance, equal tokens | acceptance, equal time | decoded acceptance |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for side in sides:
        cells = [
            spread([run.tokens_per_second for run in side.runs], 0),
            spread([run.padding_efficiency for run in side.runs], 3),
            f"{mixing[side.name]:.3f}",
            spread([at(run, "tokens", "loss", tokens) for run in side.runs], 3),
            spread([at(run, "seconds", "loss", seconds) for run in side.runs], 3),
            spread([at(run, "tokens", "acceptance", tokens) for run in side.runs], 3),
            spread([at(run, "seconds", "acceptance", seconds) for run in side.runs], 3),
            spread([run.acceptance for run in side.runs], 2),
        ]
        lines.append(f"| {side.name} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Against {first.name} (95 % intervals, claims corrected by Holm, at least {MIN_SEEDS} seeds a side):",
        "",
    ]
    lines += [f"- {sentence}" for side in sides[1:] for sentence in claims(first, side, measured)]
    return "\n".join(lines) + "\n"


def at(run: Run, over: str, what: str, place: float) -> float:
    """A held-out curve of a run at a number of tokens or seconds."""
    return value_at(getattr(run.curves, over), getattr(run.curves, what), place)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation."""
    if any(map(math.isnan, values)):
        return "not reached"
    error = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):,.{digits}f}{error}"


def claims(first: Side, side: Side, measured: dict[str, dict[str, Measured]]) -> list[str]:
    """What may be said of a side against the first."""
    found = {name: difference(each[first.name], each[side.name]) for name, each in measured.items()}
    said = findings(found, [len(first.runs), len(side.runs)], LESS_IS_BETTER)
    return [
        f"{side.name}, {name}: {each.value:+.3g} ({each.lower:+.3g} to {each.upper:+.3g}): {said[name]}"
        for name, each in found.items()
    ]


def replace_section(path: Path, text: str) -> None:
    """Put a section in the place of the one with its title, or at the end."""
    before = path.read_text() if path.exists() else "# Measured results\n"
    section = re.compile(re.escape(TITLE) + r"\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    kept = section.sub("", before).rstrip("\n")
    path.write_text(f"{kept}\n\n{text}")


if __name__ == "__main__":
    main()
