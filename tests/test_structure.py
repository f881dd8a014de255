"""The house rules that a reader relies on: floors, sizes, names and what the light floors may load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dflash"
FLOORS = [
    {"config", "store"},
    {"data", "batching"},
    {"kernels"},
    {"model"},
    {"transfer"},
    {"training", "planning"},
    {"evaluation"},
    {"report"},
    {"__main__"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# Rooms of one floor that may not see each other; `training` and `planning` share preflight's checks, so they may.
SEPARATE = {frozenset({"config", "store"}), frozenset({"data", "batching"})}
MODULES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted((ROOT / "workflow_scripts").glob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides which room it reaches"
            found.add(node.module or "")
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    for module in imported_modules(path):
        parts = module.split(".")
        if parts[0] == "workflow_scripts":
            pytest.fail(f"{path} imports a workflow script")
        if parts[0] != "dflash" or len(parts) == 1 or parts[1] == room:
            continue
        below = FLOOR_OF[parts[1]] <= FLOOR_OF[room]
        assert below and frozenset({room, parts[1]}) not in SEPARATE, (
            f"{path} imports {module}, which is not below {room}"
        )


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in MODULES} - {"__init__", "demo"}
    assert rooms == set(FLOOR_OF)


def test_packages_re_export_nothing() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        body = ast.parse(path.read_text()).body
        assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body), path


@pytest.mark.parametrize("path", MODULES + SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_stay_small_and_say_what_they_are_for(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400, f"{path} is longer than a room should be"
    assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


@pytest.mark.parametrize("path", MODULES + SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_broad_excepts(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = [ast.unparse(node.type)] if node.type else ["everything"]
        assert not {"everything", "Exception"} & set(names), f"{path}:{node.lineno} catches {names[0]}"


def test_rooms_that_must_not_exist() -> None:
    banned = {
        "utils",
        "helpers",
        "common",
        "manager",
        "core",
        "misc",
        "constants",
        "types",
        "exceptions",
        "base",
    }
    assert not [path for path in MODULES + SCRIPTS if path.stem in banned]


def test_no_script_is_named_like_a_standard_module() -> None:
    standard = set(sys.stdlib_module_names)
    assert not [path.stem for path in SCRIPTS if path.stem in standard]


@pytest.mark.parametrize("room", ["config", "store", "data", "batching", "report"])
def test_light_floors_never_load_torch(room: str) -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in MODULES
        if room_of(path) == room and path.stem != "__init__"
    ]
    code = f"import sys, importlib\nfor name in {names!r}: importlib.import_module(name)\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=300).returncode == 0


def test_every_rule_has_its_script() -> None:
    rules = {
        line.split()[1].rstrip(":")
        for path in (ROOT / "rules").glob("*.smk")
        for line in path.read_text().splitlines()
        if line.startswith(("rule ", "    rule "))
    }
    scripts = {path.stem for path in SCRIPTS} - {"__init__"}
    targets = {"train", "plan", "compare", "preflight", "advise", "data_report", "demo"}
    assert rules - targets <= scripts, f"rules without a script: {sorted(rules - targets - scripts)}"
