"""Every dialect gives the same messages; what is no conversation says why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.data.dialects import BadRow, find_dialect, to_messages

TURNS = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "reply"}]
ROWS = {
    "messages": {"messages": TURNS},
    "sharegpt": {"conversations": [{"from": "human", "value": "ask"}, {"from": "gpt", "value": "reply"}]},
    "prompt_response": {"prompt": "ask", "response": "reply"},
    "instruction": {"instruction": "ask", "input": "", "output": "reply"},
}


@pytest.mark.parametrize("dialect", ROWS)
def test_dialects_are_found_and_mean_the_same(dialect: str) -> None:
    assert find_dialect([ROWS[dialect]]) == dialect
    assert to_messages(ROWS[dialect], dialect) == TURNS


def test_other_dialects_are_found() -> None:
    assert find_dialect([{"input_ids": [1], "loss_mask": [1]}]) == "tokens"
    assert find_dialect([{"text": "x"}]) == "text"
    # most rows decide
    assert find_dialect([{"text": "x"}, ROWS["messages"], ROWS["messages"]]) == "messages"


def test_unknown_fields_are_named() -> None:
    with pytest.raises(ValueError, match="no dialect has the fields foo, bar; known are"):
        find_dialect([{"foo": 1, "bar": 2}])


def test_an_instruction_with_input_joins_both() -> None:
    row = {"instruction": "add", "input": "1 2", "output": "3"}
    assert to_messages(row, "instruction")[0]["content"] == "add\n\n1 2"


def test_parts_and_tools_are_kept() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42", "tool_call_id": "1"},
            {"role": "assistant", "content": "done"},
        ]
    }
    messages = to_messages(row, "messages")
    assert messages[0]["content"] == "ab"
    assert messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert messages[2]["tool_call_id"] == "1"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "messages is no list of turns"),
        ({"messages": "x"}, "messages is no list of turns"),
        ({"messages": [3]}, "a turn is no object"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "a turn has an unknown role"),
        ({"messages": [{"role": "user", "content": None}]}, "the text of a turn of role user is missing"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no assistant turn"),
        ({"messages": [{"role": "assistant", "content": "  "}]}, "an assistant turn is empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "a turn has a part that is no text",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "half of a surrogate pair"),
    ],
)
def test_a_bad_row_says_why(row: dict, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        to_messages(row, "messages")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "type", "text"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(sorted(ROWS)), st.dictionaries(st.sampled_from(["messages", "conversations", "prompt", "response", "instruction", "input", "output"]), JSON))  # fmt: skip
def test_any_row_gives_messages_or_a_reason(dialect: str, row: dict) -> None:
    try:
        messages = to_messages(row, dialect)
    except BadRow as error:
        reason = str(error)
        assert reason
    else:
        assert all(isinstance(message["content"], str) for message in messages)
