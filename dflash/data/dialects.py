"""The shapes in which people keep conversations, and one shape for all: a list of messages.

A reader of a dialect gives messages, or raises `BadRow` with the reason. Which dialect a file has is found from its
first rows and shown; a file that mixes dialects needs its own source for each.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
SAMPLED_ROWS = 64


class BadRow(ValueError):
    """A row that can't become a sample; the text is the reason, the same for all rows of one kind."""


def find_dialect(rows: Iterable[Mapping[str, Any]]) -> str:
    """The dialect of a file's first rows.

    Raises:
        ValueError: the rows have no known shape; names the fields they have.
    """
    seen: list[str] = []
    fields: dict[str, None] = {}
    for row in rows:
        fields.update(dict.fromkeys(map(str, row)))
        seen += [name for name, keys in _SIGNS.items() if all(row.get(key) is not None for key in keys)][:1]
    if not seen:
        raise ValueError(
            f"no dialect has the fields {', '.join(fields) or 'of no row at all'}; known are "
            + "; ".join(f"{name}: {' + '.join(keys)}" for name, keys in _SIGNS.items())
        )
    return max(dict.fromkeys(seen), key=seen.count)


def to_messages(row: Mapping[str, Any], dialect: str) -> list[dict[str, Any]]:
    """The messages of a row.

    Raises:
        BadRow: it has none, or none that can be trained on.
    """
    messages = _READERS[dialect](row)
    if not any(message["role"] == "assistant" for message in messages):
        raise BadRow("no assistant turn")
    return messages


def _messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_message(each, "role", "content") for each in _list(row, "messages")]


def _sharegpt(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_message(each, "from", "value") for each in _list(row, "conversations")]


def _prompt_response(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    response = next(
        (row[key] for key in ("response", "completion", "answer") if row.get(key) is not None), None
    )
    return [_turn("user", row.get("prompt")), _turn("assistant", response)]


def _instruction(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = row.get("input")
    prompt = row.get("instruction")
    if isinstance(given, str) and given.strip() and isinstance(prompt, str):
        prompt = f"{prompt}\n\n{given}"
    return [_turn("user", prompt), _turn("assistant", row.get("output"))]


def _list(row: Mapping[str, Any], key: str) -> list[Any]:
    value = row.get(key)
    if not isinstance(value, list) or not value:
        raise BadRow(f"{key} is no list of turns")
    return value


def _message(each: Any, role_key: str, text_key: str) -> dict[str, Any]:
    if not isinstance(each, Mapping):
        raise BadRow("a turn is no object")
    role = ROLES.get(str(each.get(role_key)).lower())
    if role is None:
        raise BadRow("a turn has an unknown role")
    message = _turn(role, each.get(text_key), optional=bool(each.get("tool_calls")))
    for key in ("tool_calls", "tool_call_id", "name", "reasoning_content", "thinking"):
        if each.get(key) is not None:
            message[key] = each[key]
    return message


def _turn(role: str, content: Any, optional: bool = False) -> dict[str, Any]:
    if isinstance(content, list):
        content = _joined(content)
    if content is None and optional:
        content = ""
    if not isinstance(content, str):
        raise BadRow(f"the text of a turn of role {role} is missing or no text")
    if role == "assistant" and not content.strip() and not optional:
        raise BadRow("an assistant turn is empty")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow("a turn holds half of a surrogate pair") from None
    return {"role": role, "content": content}


def _joined(parts: list[Any]) -> str:
    """The text of a multi-part turn."""
    texts = []
    for part in parts:
        if (
            not isinstance(part, Mapping)
            or part.get("type", "text") != "text"
            or not isinstance(part.get("text"), str)
        ):
            raise BadRow("a turn has a part that is no text")
        texts.append(part["text"])
    return "".join(texts)


_SIGNS: dict[str, tuple[str, ...]] = {
    "tokens": ("input_ids",),
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "prompt_response": ("prompt",),
    "instruction": ("instruction", "output"),
    "text": ("text",),
}
_READERS: dict[str, Callable[[Mapping[str, Any]], list[dict[str, Any]]]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "prompt_response": _prompt_response,
    "instruction": _instruction,
}
