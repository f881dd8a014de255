"""Commands beside the pipeline: `python -m dflash why|fresh|gc|adopt|watch`, called in the folder of the results."""

import argparse
import sys
from pathlib import Path

from dflash.store.adoption import adopt
from dflash.store.clearing import ask_afresh, collect
from dflash.store.forecast import in_time
from dflash.store.reason import explanations
from dflash.store.request import STORE

PROJECT = Path(__file__).parents[1]
SCRIPTS = "workflow_scripts"


def main() -> None:
    """Run one command; a mistake ends with one message and status 1."""
    arguments = _parser().parse_args()
    try:
        arguments.run(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dflash", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    why = commands.add_parser(
        "why", help="why a stage ran last: which component of its key changed, from what to what"
    )
    why.add_argument("stage")
    why.add_argument("experiment", nargs="?", help="one experiment; all without it")
    why.set_defaults(run=_why)

    fresh = commands.add_parser("fresh", help="ignore the stored result of a stage once, in the next run")
    fresh.add_argument("stage")
    fresh.add_argument("experiment", nargs="?", help="one experiment; all without it")
    fresh.set_defaults(run=_fresh)

    gc = commands.add_parser("gc", help="drop from the store what no current result refers to")
    gc.add_argument("--dry-run", action="store_true", help="only list it")
    gc.add_argument("--unfinished", action="store_true", help="unfinished trainings too")
    gc.set_defaults(run=_gc)

    adopted = commands.add_parser(
        "adopt", help="let a training whose key differs in code alone go on, or stay"
    )
    adopted.add_argument("experiment")
    adopted.set_defaults(run=_adopt)

    watched = commands.add_parser("watch", help="the trainings in progress: loss, speed, balance, verdict")
    watched.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="between two looks; 5")
    watched.add_argument("--once", action="store_true", help="look once")
    watched.set_defaults(run=_watch)
    return parser


def _why(arguments: argparse.Namespace) -> None:
    for line in explanations(arguments.stage, arguments.experiment):
        print(line)


def _fresh(arguments: argparse.Namespace) -> None:
    for name in ask_afresh(arguments.stage, arguments.experiment):
        print(f"{name} will be made again by the next run")


def _gc(arguments: argparse.Namespace) -> None:
    found = collect(arguments.unfinished, arguments.dry_run)
    for each in found:
        kind = "unfinished, " if each.unfinished else ""
        print(f"{each.folder}: {kind}{each.bytes / 1e6:.1f} MB, took {in_time(each.spent_seconds)}")
    verb = "would free" if arguments.dry_run else "freed"
    print(f"{verb} {sum(each.bytes for each in found) / 1e6:.1f} MB in {len(found)} folders")


def _adopt(arguments: argparse.Namespace) -> None:
    print(adopt(arguments.experiment, PROJECT, SCRIPTS))


def _watch(arguments: argparse.Namespace) -> None:
    # Drawing needs numpy; the other commands start without it.
    from dflash.report.live import watch

    try:
        watch(STORE, max(0.5, arguments.every), once=arguments.once)
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
