"""The page's part on what was found about the machine before the run."""

import json
from pathlib import Path

from dflash.report.markup import Markup, section, table

KEYS = ("name", "ok", "found", "remedy")


def preflight_section(path: Path) -> Markup:
    """Every finding in plain words; the remedy where one is needed.

    Args:
        path: preflight.json, a list of objects with name, ok, found and remedy.

    Raises:
        ValueError: the file is missing, or a finding lacks a key.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing; run the stage run_preflight again")
    rows = []
    for finding in json.loads(path.read_text(encoding="utf-8")):
        lacking = [key for key in KEYS if key not in finding]
        if lacking:
            raise ValueError(f"{path}: a finding has no key {lacking[0]!r}")
        good = finding["ok"]
        rows.append(
            (finding["name"], "good" if good else "BAD", finding["found"], "" if good else finding["remedy"])
        )
    return section(
        "preflight",
        "Preflight",
        table(
            ["check", "verdict", "found", "remedy"],
            rows,
            caption="What was checked on this machine before the training started",
        ),
    )
