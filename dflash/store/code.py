"""What code a stage executes: the first-party import closure of its script, as digests of syntax trees.

Comments, blank lines and docstrings are not in a digest; names, values and annotations are. Imports inside functions
count, imports for type checkers alone do not. A file that a module names by a plain string and that lies beside the
module (a style sheet, a table) belongs to the module. The store itself is excluded: it has a format number.
"""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflash.store.content import STAT_FIELDS, sha256_of, stat_of

PACKAGES = ("dflash", "workflow_scripts")
EXCLUDED = "dflash.store"
MAX_NAME_LENGTH = 100


class CodeIndex:
    """Digests of the modules of a project, kept in a dict that may be saved between runs.

    Args:
        project: folder that holds the packages.
        known: what an earlier index of the same project knew; it is brought up to date in place.
    """

    def __init__(self, project: Path, known: dict[str, Any]) -> None:
        self._project = project
        self._known = known
        self._seen: dict[str, dict[str, Any]] = {}

    def closure(self, script: str) -> dict[str, str]:
        """Digest of every first-party module that a module may execute, itself included, by module name.

        Raises:
            ValueError: the script does not exist.
        """
        if self._file_of(script) is None:
            raise ValueError(
                f"no script {script} in {self._project}; every rule needs the script of its name"
            )
        found: dict[str, str] = {}
        waiting = [*_with_parents(script)]
        while waiting:
            name = waiting.pop()
            if name in found or name == EXCLUDED or name.startswith(EXCLUDED + "."):
                continue
            facts = self._facts(name)
            if facts:
                found[name] = facts["digest"]
                waiting.extend(facts["imports"])
        return dict(sorted(found.items()))

    def settings(self, script: str) -> tuple[str, ...]:
        """The literal tuple SETTINGS of a script: the settings its stage may see."""
        facts = self._facts(script)
        if not facts or facts["settings"] is None:
            raise ValueError(f"{script} must set SETTINGS to a literal tuple of the settings it may see")
        return tuple(facts["settings"])

    def _file_of(self, module: str) -> Path | None:
        path = self._project.joinpath(*module.split("."))
        candidates = (path.with_suffix(".py"), path / "__init__.py")
        return next((each for each in candidates if each.is_file()), None)

    def _facts(self, module: str) -> dict[str, Any] | None:
        if module not in self._seen:
            file = self._file_of(module)
            if file is None:
                return None
            self._seen[module] = self._known[module] = self._read(module, file)
        return self._seen[module]

    def _read(self, module: str, file: Path) -> dict[str, Any]:
        known = self._known.get(module)
        stat = stat_of(file)
        if (
            known
            and known["stat"] == stat
            and all(_is_known(file.parent / n, s) for n, s in known["beside"].items())
        ):
            return dict(known)
        tree = ast.parse(file.read_bytes(), filename=str(file))
        beside = {
            name: [*stat_of(file.parent / name), sha256_of(file.parent / name)]
            for name in _named_files(tree, file)
        }
        hasher = hashlib.sha256("\n".join(_spelled(tree)).encode())
        for name, entry in sorted(beside.items()):
            hasher.update(f"\n{name} {entry[STAT_FIELDS]}".encode())
        imports = sorted(set(self._imports(tree, module, file.name == "__init__.py")))
        return {
            "stat": stat,
            "digest": hasher.hexdigest(),
            "imports": imports,
            "beside": beside,
            "settings": _settings(tree),
        }

    def _imports(self, tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
        package = module.split(".") if is_package else module.split(".")[:-1]
        for node in _executed(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from _with_parents(alias.name)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                yield from _with_parents(base)
                for alias in node.names:
                    # Either a name in the module or a module of its own; the second has a file.
                    if base.split(".")[0] in PACKAGES and self._file_of(f"{base}.{alias.name}"):
                        yield f"{base}.{alias.name}"


def _is_known(path: Path, entry: list[Any]) -> bool:
    return path.is_file() and stat_of(path) == entry[:STAT_FIELDS]


def _with_parents(module: str) -> Iterator[str]:
    """A first-party module and the packages it lies in, whose `__init__` runs first."""
    parts = module.split(".")
    if parts[0] in PACKAGES:
        yield from (".".join(parts[: length + 1]) for length in range(len(parts)))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _executed(other)
        else:
            yield from _executed(child)


def _named_files(tree: ast.AST, file: Path) -> list[str]:
    """Names of files beside a module that the module holds as plain strings."""
    strings = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    plain = {
        each for each in strings if "." in each and "/" not in each and "\n" not in each and "\0" not in each
    }
    return sorted(
        each
        for each in plain
        if len(each) < MAX_NAME_LENGTH and (file.parent / each).is_file() and each != file.name
    )


def _settings(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == "SETTINGS" for each in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return None


def _spelled(node: Any) -> Iterator[str]:
    """A syntax tree as text, without docstrings and positions, and spelled alike by all supported Pythons."""
    if isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if (value is None and name != "value") or value == [] or name in ("kind", "type_comment"):
                continue
            yield name
            yield from _spelled(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for each in node:
            if not _is_docstring(each):
                yield from _spelled(each)
        yield "]"
    else:
        yield repr(node)


def _is_docstring(node: Any) -> bool:
    """A string that stands alone does nothing, wherever it stands."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
