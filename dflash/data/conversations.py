"""The conversations of a source whose responses the target writes anew, chosen by hash.

What the target answers: every assistant turn that follows a message of somebody else. A turn that calls a tool stays as it
is, because the tool's answer after it belongs to that call; an assistant turn right after another, or before anybody
spoke, answers nothing and is left out, and so is what follows the last answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from dflash.data.dialects import SAMPLED_ROWS, BadRow, find_dialect, to_messages
from dflash.data.reading import read_rows
from dflash.data.split import canonical_bytes, prompt_bytes, split_of


@dataclass(frozen=True)
class Conversation:
    """What the others say, in the pieces between the target's answers.

    Attributes:
        pieces: the messages before the first answer, those between it and the second, and so on; one answer each.
        split: the split of the first prompt. name: a hash of the pieces, for files.
    """

    pieces: list[list[dict[str, Any]]]
    split: int
    name: str


def read_conversations(
    path: Path, dialect: str, validation_share: float, test_share: float
) -> tuple[list[Conversation], int]:
    """The distinct conversations of a file in the order of their names, and how many rows were none.

    Raises:
        ValueError: no row, or no known dialect.
    """
    first = [row.fields for row in islice(read_rows(path), SAMPLED_ROWS) if row.fields is not None]
    if not first:
        raise ValueError(
            f"{path} has no row that can be read; it is empty or has another format than its name says"
        )
    known = find_dialect(first) if dialect == "auto" else dialect
    found: dict[str, Conversation] = {}
    bad = 0
    for row in read_rows(path):
        try:
            if row.fields is None:
                raise BadRow(row.reason or "unreadable")
            pieces = list(_pieces(to_messages(row.fields, known)))
            if not pieces:
                raise BadRow("no turn to answer")
        except BadRow:
            bad += 1
            continue
        name = blake2b(b"".join(map(canonical_bytes, pieces)), digest_size=16).hexdigest()
        # as the encoder will see it
        split = split_of(prompt_bytes(pieces[0]), validation_share, test_share)
        found[name] = Conversation(pieces, split, name)
    return [found[name] for name in sorted(found)], bad


def _pieces(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    piece: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != "assistant" or message.get("tool_calls"):
            piece.append(dict(message))
        elif piece:
            yield piece
            piece = []


def choose(conversations: Sequence[Conversation], max_samples: int | None) -> list[Conversation]:
    """At most `max_samples` of each split, the first by name."""
    if max_samples is None:
        return list(conversations)
    taken: dict[int, int] = {}
    chosen = []
    for each in conversations:
        taken[each.split] = taken.get(each.split, 0) + 1
        if taken[each.split] <= max_samples:
            chosen.append(each)
    return chosen
