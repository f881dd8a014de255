"""Write config/schema.json and config/README.md from the typed settings, or check that they are up to date."""

import argparse
import os
import sys
from pathlib import Path

from dflash.config.reference import reference_text, schema_text

FOLDER = Path(__file__).parents[1] / "config"


def main() -> None:
    """Write both files; with --check, exit with 1 and name those that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args().check
    wanted = {FOLDER / "schema.json": schema_text(), FOLDER / "README.md": reference_text()}
    stale = [
        path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if check and stale:
        sys.exit(
            f"out of date: {', '.join(path.name for path in stale)}; run `make config` and commit the result"
        )
    for path in stale:
        part = path.with_name(f".{path.name}.part")
        part.write_text(wanted[path], encoding="utf-8")
        os.replace(part, path)


if __name__ == "__main__":
    main()
