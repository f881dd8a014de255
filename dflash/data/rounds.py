"""Conversations written anew, in rounds: round k asks the k-th answer of every conversation that is still open.

Each answer is conditioned on the answers before it, not on those of the data. A conversation ends early where an answer is
cut off, empty, or not given. Every answer is written to a file as it comes, so that a stop loses none and asks none twice.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from dflash.data.conversations import Conversation


@dataclass(frozen=True)
class Prompt:
    """The messages that the target is to answer, by the conversation's name."""

    messages: list[dict[str, Any]]
    name: str


@dataclass(frozen=True)
class Answer:
    """What the target said, and whether it met the limit of tokens."""

    text: str
    is_cut: bool


@dataclass
class Rewritten:
    """A conversation with its answers so far; `is_open` while the last one allows another."""

    conversation: Conversation
    answers: list[Answer] = field(default_factory=list)
    is_open: bool = True

    def messages(self) -> list[dict[str, Any]]:
        """The pieces, each but an open last one with its answer."""
        said = [[{"role": "assistant", "content": each.text}] for each in self.answers]
        pieces = self.conversation.pieces
        whole = list(chain.from_iterable(chain(*pair) for pair in zip(pieces, said, strict=False)))
        return whole + (pieces[len(said)] if self.is_open and len(said) < len(pieces) else [])

    def take(self, answer: Answer | None) -> None:
        """Add an answer, or end the conversation where there is none."""
        if answer is not None and answer.text.strip():
            self.answers.append(answer)
        self.is_open = (
            answer is not None
            and bool(answer.text.strip())
            and not answer.is_cut
            and len(self.answers) < len(self.conversation.pieces)
        )

    def row(self) -> str:
        """A line of the regenerated file. `cut`: the last answer met the limit of tokens."""
        fields = {
            "id": self.conversation.name,
            "cut": self.answers[-1].is_cut,
            "messages": self.messages(),
        }
        return json.dumps(fields, ensure_ascii=False) + "\n"


Respond = Callable[[Sequence[Prompt]], Iterator[tuple[Prompt, Answer]]]
"""Answers as they come, in any order; a prompt that can't be answered (too long, refused) is left out."""


def rewrite(conversations: Sequence[Conversation], respond: Respond, done: Path) -> list[Rewritten]:
    """Every conversation, answered anew as far as it goes, in the order given.

    Args:
        done: file of the answers so far, a line each; what stands there is not asked again.

    Raises:
        ValueError: not one conversation got an answer.
    """
    known = _read(done)
    rewritten = [Rewritten(each) for each in conversations]
    with done.open("a", encoding="utf-8") as file:
        for turn in count():
            asked = [each for each in rewritten if each.is_open]
            if not asked:
                break
            prompts = [Prompt(each.messages(), each.conversation.name) for each in asked]
            missing = [each for each in prompts if (each.name, turn) not in known]
            if turn or len(missing) < len(prompts):
                print(f"turn {turn + 1}: {len(missing)} of {len(prompts)} to answer", flush=True)
            for prompt, answer in respond(missing) if missing else ():
                line = {"name": prompt.name, "turn": turn, "text": answer.text, "cut": answer.is_cut}
                file.write(json.dumps(line) + "\n")
                file.flush()
                known[prompt.name, turn] = answer
            for each in asked:
                each.take(known.get((each.conversation.name, turn)))
    if conversations and not known:
        raise ValueError(
            f"none of {len(conversations)} conversations was answered: every prompt was refused or longer than "
            "data.max_length; the lines above say why"
        )
    return rewritten


def _read(done: Path) -> dict[tuple[str, int], Answer]:
    """The answers of an earlier attempt; a line that a kill cut short is removed."""
    if not done.exists():
        return {}
    text = done.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        with done.open("r+b") as file:
            file.truncate(len(whole))
    rows = map(json.loads, whole.splitlines())
    return {(row["name"], row["turn"]): Answer(row["text"], row["cut"]) for row in rows}
