"""The conversations of a source whose responses the target writes anew: their prompts, chosen by hash."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from dflash.data.dialects import SAMPLED_ROWS, BadRow, find_dialect, to_messages
from dflash.data.reading import read_rows
from dflash.data.split import prompt_bytes, split_of


@dataclass(frozen=True)
class Prompt:
    """A prompt: the messages before the first assistant turn, its split, and a name for it in files."""

    messages: list[dict[str, Any]]
    split: int
    name: str


def read_prompts(
    path: Path, dialect: str, validation_share: float, test_share: float
) -> tuple[list[Prompt], int]:
    """The distinct prompts of a file in the order of their hashes, and how many rows were no conversation.

    Raises:
        ValueError: no row, or no known dialect.
    """
    first = [row.fields for row in islice(read_rows(path), SAMPLED_ROWS) if row.fields is not None]
    if not first:
        raise ValueError(
            f"{path} has no row that can be read; it is empty or has another format than its name says"
        )
    known = find_dialect(first) if dialect == "auto" else dialect
    found: dict[str, Prompt] = {}
    bad = 0
    for row in read_rows(path):
        try:
            if row.fields is None:
                raise BadRow(row.reason or "unreadable")
            messages = to_messages(row.fields, known)
        except BadRow:
            bad += 1
            continue
        prompt = prompt_bytes(messages)
        name = blake2b(prompt, digest_size=16).hexdigest()
        found[name] = Prompt(
            list(_before_assistant(messages)), split_of(prompt, validation_share, test_share), name
        )
    return [found[name] for name in sorted(found)], bad


def _before_assistant(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if message["role"] == "assistant":
            return
        yield dict(message)


def choose(prompts: Sequence[Prompt], max_samples: int | None) -> list[Prompt]:
    """At most `max_samples` of each split, the first by hash."""
    if max_samples is None:
        return list(prompts)
    taken: dict[int, int] = {}
    chosen = []
    for prompt in prompts:
        taken[prompt.split] = taken.get(prompt.split, 0) + 1
        if taken[prompt.split] <= max_samples:
            chosen.append(prompt)
    return chosen


def row_of(prompt: Prompt, text: str, is_cut: bool) -> str:
    """A line of the regenerated file. `cut`: the response met the limit of tokens."""
    messages = [*prompt.messages, {"role": "assistant", "content": text}]
    return json.dumps({"id": prompt.name, "cut": is_cut, "messages": messages}, ensure_ascii=False) + "\n"
