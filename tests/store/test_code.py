"""What counts as the code of a script."""

import os
from pathlib import Path

import pytest

from dflash.store.code import CodeIndex

SCRIPT = '"""A script."""\nfrom dflash.room import tool\nSETTINGS = ("training", "data.seed")\n'
TOOL = '"""A tool."""\nfrom dflash.room.deep import VALUE\n\ndef f(x: int) -> int:\n    """Docstring."""\n    return x + VALUE\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "workflow_scripts/__init__.py": "",
        "workflow_scripts/work.py": SCRIPT,
        "dflash/__init__.py": "",
        "dflash/room/__init__.py": "",
        "dflash/room/tool.py": TOOL,
        "dflash/room/deep.py": "VALUE = 1\n",
        "dflash/room/other.py": "VALUE = 2\n",
        "dflash/store/__init__.py": "",
        "dflash/store/stage.py": "VALUE = 3\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def closure(project: Path) -> dict[str, str]:
    return CodeIndex(project, {}).closure("workflow_scripts.work")


def test_the_closure_is_what_the_script_may_execute(project: Path) -> None:
    assert set(closure(project)) == {
        "workflow_scripts", "workflow_scripts.work", "dflash", "dflash.room", "dflash.room.tool", "dflash.room.deep"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("dflash/room/tool.py", TOOL + "\n\n# a comment\n"),
        ("dflash/room/tool.py", TOOL.replace("Docstring", "Another docstring")),
        ("dflash/room/tool.py", TOOL.replace("return x + VALUE", "return (x +\n        VALUE)")),
        (
            "dflash/room/tool.py",
            TOOL + "\nfrom typing import TYPE_CHECKING\n",
        ),
        ("dflash/room/other.py", "VALUE = 20\n"),
        ("dflash/store/stage.py", "VALUE = 30\n"),
    ],
)
def test_what_changes_nothing_that_is_executed(project: Path, module: str, text: str) -> None:
    before = closure(project)
    (project / module).write_text(text)
    if "TYPE_CHECKING" in text:
        # The line itself is code; what stands under it is not.
        before = closure(project)
        (project / module).write_text(text + "if TYPE_CHECKING:\n    from dflash.room import other\n")
        assert "dflash.room.other" not in closure(project)
        return
    assert closure(project) == before


@pytest.mark.parametrize(
    ("module", "text", "changed"),
    [
        ("dflash/room/deep.py", "VALUE = 5\n", {"dflash.room.deep"}),
        ("dflash/room/tool.py", TOOL.replace("x: int", "x: float"), {"dflash.room.tool"}),
        ("dflash/__init__.py", "import os\n", {"dflash"}),
        ("workflow_scripts/work.py", SCRIPT + "def g():\n    from dflash.room import other\n", {"workflow_scripts.work", "dflash.room.other"}),
        ("workflow_scripts/work.py", SCRIPT + "import dflash.room.other as o\n", {"workflow_scripts.work", "dflash.room.other"}),
        ("workflow_scripts/work.py", SCRIPT.replace("from dflash.room import tool", "from dflash.room.tool import f"), {"workflow_scripts.work"}),
    ],
)  # fmt: skip
def test_what_changes_the_digest_of_exactly_these_modules(
    project: Path, module: str, text: str, changed: set[str]
) -> None:
    before = closure(project)
    (project / module).write_text(text)
    now = closure(project)
    assert {name for name in now if now[name] != before.get(name)} == changed
    assert set(before) <= set(now)


def test_a_file_beside_a_module_that_names_it_belongs_to_it(project: Path) -> None:
    (project / "dflash/room/style.css").write_text("a")
    (project / "dflash/room/tool.py").write_text(TOOL + 'STYLE = "style.css"\n')
    before = closure(project)
    (project / "dflash/room/style.css").write_text("b")
    now = closure(project)
    assert {name for name in now if now[name] != before[name]} == {"dflash.room.tool"}


def test_what_is_known_is_read_again_when_the_file_changed_though_its_time_did_not(project: Path) -> None:
    known: dict[str, object] = {}
    before = CodeIndex(project, known).closure("workflow_scripts.work")
    path = project / "dflash/room/deep.py"
    status = path.stat()
    path.write_text("VALUE = 7\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert CodeIndex(project, known).closure("workflow_scripts.work") != before


def test_settings_are_a_literal(project: Path) -> None:
    assert CodeIndex(project, {}).settings("workflow_scripts.work") == ("training", "data.seed")
    (project / "workflow_scripts/work.py").write_text("pass\n")
    with pytest.raises(ValueError, match="must set SETTINGS"):
        CodeIndex(project, {}).settings("workflow_scripts.work")
    with pytest.raises(ValueError, match=r"no script workflow_scripts\.nothing"):
        CodeIndex(project, {}).closure("workflow_scripts.nothing")
