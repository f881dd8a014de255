"""The built-in corpus: functions and classes of the running Python's standard library.

The prompt of a conversation is a signature with its docstring, the response is the body. No download, real text, and
lengths over three orders of magnitude. The corpus belongs to the Python version that runs: another minor version has
other sources, so its samples differ (the file `corpus.json` beside the export says which version it was).

Near-duplicates are dropped over the whole corpus, so that no held-out prompt has a twin in the training split: a
definition whose set of 5-token shingles has a Jaccard similarity of at least one half with an earlier one is left out,
and so is one whose prompt stood before.
"""

import ast
import json
import re
import sys
import sysconfig
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What distributions leave out or split off, and tests inside packages.
LEFT_OUT = frozenset({"test", "tests", "idlelib", "tkinter", "lib2to3", "turtle", "turtledemo"})
# The interpreter's own list is the same on every platform, whatever else lies in the folder.
MODULES = sys.stdlib_module_names - LEFT_OUT
SHINGLE_TOKENS = 5
MAX_SIMILARITY = 0.5
MIN_BODY_CHARACTERS = 12
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Definition:
    """One function or class: where it stands, its head (decorators, signature, docstring) and its body."""

    name: str
    head: str
    body: str


def export_corpus(folder: Path) -> dict[str, int]:
    """Write `stdlib.jsonl` and `corpus.json` into a folder and give the counts of the latter.

    A row is `{"id": "module:name:line", "messages": [user, assistant]}`.
    """
    found = list(definitions(Path(sysconfig.get_paths()["stdlib"])))
    separate = without_near_duplicates(found)
    kept = list({definition.head: definition for definition in reversed(separate)}.values())[::-1]
    with (folder / "stdlib.jsonl").open("w", encoding="utf-8") as file:
        for definition in kept:
            file.write(json.dumps(conversation(definition), ensure_ascii=False) + "\n")
    counts = {
        "definitions": len(found),
        "near_duplicates": len(found) - len(separate),
        "repeated_prompts": len(separate) - len(kept),
        "conversations": len(kept),
    }
    version = ".".join(map(str, sys.version_info[:3]))
    (folder / "corpus.json").write_text(json.dumps({"python": version, **counts}, indent=1) + "\n")
    return counts


def conversation(definition: Definition) -> dict[str, object]:
    """The row of a definition."""
    prompt = {"role": "user", "content": definition.head}
    response = {"role": "assistant", "content": definition.body}
    return {"id": definition.name, "messages": [prompt, response]}


def definitions(root: Path) -> Iterator[Definition]:
    """Every function and class of the sources below a folder, in the order of their paths and lines."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if relative.with_suffix("").parts[0] not in MODULES or LEFT_OUT & set(relative.parts):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError):
            # the standard library ships a few files that are wrong on purpose
            continue
        lines = source.splitlines()
        for node in _separate(tree):
            cut = _cut(node, lines)
            if cut is not None:
                yield Definition(f"{relative.as_posix()}:{node.name}:{node.lineno}", *cut)


def _separate(tree: ast.AST) -> Iterator[Node]:
    """Definitions none of which stands inside another, in the order of their lines.

    A class with methods gives its methods, else a held-out method would stand in the text of a class trained on.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function) or (
            isinstance(node, ast.ClassDef) and not any(isinstance(each, Function) for each in ast.walk(node))
        ):
            yield node
        else:
            yield from _separate(node)


def _cut(node: Node, lines: list[str]) -> tuple[str, str] | None:
    """Head and body by slicing lines (parsing positions again for each node would be fifty times slower)."""
    begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        if len(node.body) == 1:
            return None
        body_begin = (first.end_lineno or first.lineno) + 1
    else:
        decorators = getattr(first, "decorator_list", [])
        body_begin = min([first.lineno, *(decorator.lineno for decorator in decorators)])
    head = textwrap.dedent("\n".join(lines[begin - 1 : body_begin - 1])).strip("\n")
    body = textwrap.dedent("\n".join(lines[body_begin - 1 : node.end_lineno])).strip("\n").rstrip()
    return (head, body) if head.strip() and len(body) >= MIN_BODY_CHARACTERS else None


def without_near_duplicates(found: list[Definition]) -> list[Definition]:
    """The definitions that resemble no earlier kept one.

    Candidates come from an inverted index over the rarest shingles: two sets with a Jaccard similarity of at least s
    share a shingle among the rarest ceil((1 - s) n) + 1 of each (prefix filtering; Chaudhuri et al., 2006).
    """
    shingles = [_shingles(definition) for definition in found]
    frequency = Counter(shingle for each in shingles for shingle in each)
    kept: list[int] = []
    holders: dict[str, list[int]] = defaultdict(list)
    for number, each in enumerate(shingles):
        prefix = sorted(each, key=lambda shingle: (frequency[shingle], shingle))
        prefix = prefix[: int((1 - MAX_SIMILARITY) * len(each)) + 1]
        candidates = {other for shingle in prefix for other in holders[shingle]}
        if any(_similarity(each, shingles[other]) >= MAX_SIMILARITY for other in candidates):
            continue
        kept.append(number)
        for shingle in prefix:
            holders[shingle].append(number)
    return [found[number] for number in kept]


def _shingles(definition: Definition) -> frozenset[str]:
    words = WORD.findall(definition.head + "\n" + definition.body)
    places = range(max(1, len(words) - SHINGLE_TOKENS + 1))
    return frozenset(" ".join(words[place : place + SHINGLE_TOKENS]) for place in places)


def _similarity(left: frozenset[str], right: frozenset[str]) -> float:
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)
