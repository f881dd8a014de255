"""Conversations written anew: every answer after the new ones before it, and a kill loses or doubles none."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dflash.data.conversations import choose, read_conversations
from dflash.data.rounds import Answer, Prompt, rewrite

CHILD = """
import json, sys
from functools import partial
from pathlib import Path
from dflash.data.conversations import read_conversations
from dflash.data.rounds import rewrite
from dflash.data.server import Server, respond_to_all

url, model, rows, done, written = sys.argv[1:]
server = Server(url, model, None, 0.0, 7, 3, 2, 20.0, {})
found, _ = read_conversations(Path(rows), "auto", 0.0, 0.0)
rewritten = rewrite(found, partial(respond_to_all, server), Path(done))
Path(written).write_text("".join(each.row() for each in rewritten if each.answers))
"""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return path


def numbered(prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, Answer]]:
    """Says how many messages it saw and the last; what holds `cut`, `empty` or `refuse` is treated so. Backwards."""
    for prompt in reversed(prompts):
        last = prompt.messages[-1]["content"]
        if "refuse" not in last:
            text = " " if "empty" in last else f"{len(prompt.messages)} {last}"
            yield prompt, Answer(text, "cut" in last)


def rewritten(tmp_path: Path, rows: Sequence[Any]) -> dict[str, Any]:
    """Rows by the text of their first message."""
    found, _ = read_conversations(write(tmp_path / "rows.jsonl", rows), "auto", 0.0, 0.0)
    made = rewrite(found, numbered, tmp_path / "done")
    lines = [json.loads(each.row()) for each in made if each.answers]
    return {line["messages"][0]["content"]: line for line in lines}


def test_every_answer_is_new_and_follows_the_new_ones(tmp_path: Path) -> None:
    row = [user("a"), said("old"), user("b"), said("older"), user("c"), said("oldest"), user("unanswered")]
    got = rewritten(tmp_path, [row])["a"]
    assert got["messages"] == [user("a"), said("1 a"), user("b"), said("3 b"), user("c"), said("5 c")]
    assert got["cut"] is False


def test_a_conversation_ends_where_an_answer_is_cut_empty_or_refused(tmp_path: Path) -> None:
    ends = ("cut", "empty", "refuse")
    rows = [
        [user(f"of {k}"), said("x"), user(end), said("y"), user("z"), said("z")] for k, end in enumerate(ends)
    ]
    got = rewritten(tmp_path, rows)
    assert got["of 0"]["messages"] == [user("of 0"), said("1 of 0"), user("cut"), said("3 cut")]
    assert got["of 1"]["messages"] == [user("of 1"), said("1 of 1")]
    assert got["of 2"]["messages"] == [user("of 2"), said("1 of 2")]
    assert [got[f"of {k}"]["cut"] for k in range(3)] == [True, False, False]


def test_system_and_tool_messages_and_calls_of_tools_stay(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "add"}}]}
    tool = {"role": "tool", "content": "3", "tool_call_id": "1"}
    system = {"role": "system", "content": "be brief"}
    got = rewritten(tmp_path, [[system, user("1 + 2"), call, tool, said("old")]])["be brief"]
    assert got["messages"] == [system, user("1 + 2"), call, tool, said("4 3")]
    rows = [[user("1 + 2"), call, {**tool, "content": text}, said("old")] for text in "345"]
    found, _ = read_conversations(write(tmp_path / "three.jsonl", rows), "auto", 0.0, 0.0)
    assert len(found) == 3


def test_turns_that_answer_nothing_are_left_out(tmp_path: Path) -> None:
    got = rewritten(tmp_path, [[said("hello"), user("a"), said("b"), said("c"), user("d"), said("e")]])["a"]
    assert got["messages"] == [user("a"), said("1 a"), user("d"), said("3 d")]
    found, bad = read_conversations(write(tmp_path / "none.jsonl", [[said("hello")]]), "auto", 0.0, 0.0)
    assert (found, bad) == ([], 1)


def test_conversations_that_differ_later_are_two_and_share_a_split(tmp_path: Path) -> None:
    rows = [[user("hi"), said("x"), user(str(n)), said("y")] for n in range(30)] + [
        [user("hi"), said("x")]
    ] * 2
    found, bad = read_conversations(write(tmp_path / "rows.jsonl", rows), "auto", 0.3, 0.3)
    assert len(found) == 31 and bad == 0
    assert len({each.split for each in found}) == 1
    assert choose(found, 5) == found[:5]


def test_no_answer_at_all_stops(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of 1 conversations was answered"):
        rewritten(tmp_path, [[user("refuse"), said("x")]])


def test_a_killed_run_goes_on_without_losing_or_doubling_an_answer(http: Any, tmp_path: Path) -> None:
    rows = [
        [turn for k in range(number % 3 + 1) for turn in (user(f"q{number}.{k}"), said("old"))]
        for number in range(24)
    ]
    num_answers = sum(len(row) // 2 for row in rows)
    killed = threading.Event()

    def answer(messages: Sequence[Any]) -> str:
        """A text that names all that it answers; past two thirds, not before the kill."""
        if len(http.bodies) > num_answers * 2 // 3:
            killed.wait()
        return "<" + " ".join(each["content"] for each in messages) + ">"

    http.answer = answer
    places = (write(tmp_path / "rows.jsonl", rows), tmp_path / "done", tmp_path / "written")
    url = f"http://127.0.0.1:{http.server_address[1]}"

    def command(model: str) -> list[str]:
        return [sys.executable, "-c", CHILD, url, model, *map(str, places)]

    child = subprocess.Popen(command("first"))
    while len(http.bodies) <= num_answers * 2 // 3:
        assert child.poll() is None
        time.sleep(0.002)
    child.kill()
    child.wait()
    killed.set()
    with places[1].open("a") as file:
        file.write('{"name": "cut in the mid')
    kept = places[1].read_text().count("\n")
    subprocess.run(command("second"), check=True)
    assert 0 < kept < num_answers
    # requests of the killed run may still arrive
    assert sum(body["model"] == "second" for body in http.bodies) == num_answers - kept
    lines = [json.loads(line) for line in places[1].read_text().splitlines()]
    assert set(Counter((line["name"], line["turn"]) for line in lines).values()) == {1}
    made = {
        line["messages"][0]["content"]: line["messages"]
        for line in map(json.loads, places[2].read_text().splitlines())
    }
    assert len(made) == len(rows)
    for row in rows:
        messages: list[dict[str, Any]] = []
        for question in row[::2]:
            messages.append(question)
            messages.append(said(answer(messages)))
        assert made[row[0]["content"]] == messages
