"""Rows in = samples + rejected rows, whatever the rows; limits, lengths and masks as the config says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data.encode import Counts, Rules, encode_file
from dflash.data.rendering import Rendering
from dflash.data.shards import Shards
from dflash.data.tokenizer import load_tokenizer, mask_token_of

RULES = Rules("auto", 64, "truncate", 0.5, 0.0, 0.0)


@pytest.fixture(scope="module")
def rendering() -> Rendering:
    return Rendering(load_tokenizer("demo"), None, {}, "all")


def turn(prompt: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]}


def encoded(
    folder: Path, rows: list[Any], rendering: Rendering, rules: Rules = RULES
) -> tuple[Counts, Shards]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = encode_file(folder / "rows.jsonl", folder, rendering, rules)
    return counts, Shards([folder / "samples.arrow"], "train")


def test_a_sample_is_the_rendered_conversation(tmp_path: Path, rendering: Rendering) -> None:
    counts, shards = encoded(tmp_path, [turn("def f(x):", "return x")], rendering)
    ids, mask = shards.sample(0)
    assert rendering.tokenizer.decode(ids) == "<|user|>def f(x):<|end|><|assistant|>return x<|end|>"
    assert rendering.tokenizer.decode(ids[mask == 1]) == "return x<|end|>"
    assert counts.dialect == "messages"
    assert (counts.rows, counts.samples, counts.tokens) == (1, 1, len(ids))


def test_the_end_of_an_answer_that_was_cut_off_is_not_supervised(
    tmp_path: Path, rendering: Rendering
) -> None:
    _, shards = encoded(tmp_path, [{**turn("def f(x):", "return x"), "cut": True}], rendering)
    ids, mask = shards.sample(0)
    assert rendering.tokenizer.decode(ids) == "<|user|>def f(x):<|end|><|assistant|>return x<|end|>"
    assert rendering.tokenizer.decode(ids[mask == 1]) == "return x"


def test_bad_rows_are_counted_by_reason_and_shown(tmp_path: Path, rendering: Rendering) -> None:
    rows = [turn("a", "b"), {"messages": []}, {"messages": []}, turn("c", "d"), 7]
    counts, _ = encoded(tmp_path, rows, rendering)
    assert counts.rejected == {"a int, not an object": 1, "messages is no list of turns": 2}
    assert counts.samples == 2
    side = [json.loads(line) for line in (tmp_path / "rejected.jsonl").read_text().splitlines()]
    assert [row["row"] for row in side] == [1, 2, 4]


def test_too_many_bad_rows_stop(tmp_path: Path, rendering: Rendering) -> None:
    rows = [turn(str(number), "b") for number in range(98)] + [{"messages": []}] * 2
    strict = Rules("auto", 64, "truncate", 0.01, 0.0, 0.0)
    with pytest.raises(
        ValueError,
        match=r"2 of 100 rows were rejected, more than data\.max_rejected \(0\.01\) allows: messages is no list",
    ):
        encoded(tmp_path, rows, rendering, strict)
    encoded(tmp_path, rows[:-1], rendering, strict)


def test_an_empty_file_and_only_bad_rows_stop(tmp_path: Path, rendering: Rendering) -> None:
    with pytest.raises(ValueError, match=r"rows\.jsonl has no row that can be read"):
        encoded(tmp_path, [], rendering)
    with pytest.raises(ValueError, match="1 of 1 rows were rejected"):
        encoded(tmp_path, [{"messages": []}], rendering)


@pytest.mark.parametrize("policy", ["truncate", "split", "drop", "error"])
def test_too_long(tmp_path: Path, rendering: Rendering, policy: Any) -> None:
    rows = [turn("a", "x = 1\n" * 60), turn("b", "c")]
    rules = Rules("auto", 64, policy, 0.5, 0.0, 0.0)
    if policy == "error":
        with pytest.raises(ValueError, match=r"row 0 has \d+ tokens, more than data\.max_length \(64\)"):
            encoded(tmp_path, rows, rendering, rules)
        return
    counts, shards = encoded(tmp_path, rows, rendering, rules)
    assert counts.too_long_samples == 1
    assert shards.lengths_N.max() <= 64
    whole = len(rendering.tokens(*rendering.render(rows[0]["messages"]))[0])
    kept = int(shards.lengths_N.sum()) - len(rendering.tokens(*rendering.render(rows[1]["messages"]))[0])
    lost = {"truncate": whole - 64, "drop": whole, "split": 0}[policy]
    assert (kept + lost, counts.too_long_tokens) == (whole, lost)


def test_a_cut_sample_without_supervision_is_rejected(tmp_path: Path, rendering: Rendering) -> None:
    counts, _ = encoded(tmp_path, [turn("x = 1\n" * 60, "y"), turn("b", "c")], rendering)
    assert counts.rejected == {"nothing supervised within data.max_length": 1}


def test_tokens_and_text_and_labels(tmp_path: Path, rendering: Rendering) -> None:
    rows = [{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}, {"input_ids": [5, 6], "labels": [-100, 6]}]
    _, shards = encoded(tmp_path, rows, rendering)
    assert [shards.sample(number)[1].tolist() for number in range(2)] == [[0, 1, 1], [0, 1]]
    counts, shards = encoded(tmp_path, [{"text": "import os"}], rendering)
    assert counts.dialect == "text"
    assert shards.supervised_N[0] == shards.lengths_N[0]
    counts, _ = encoded(
        tmp_path,
        [*rows, {"input_ids": [5], "loss_mask": [0, 1]}, {"input_ids": [1.5], "loss_mask": [1]}],
        rendering,
    )
    assert sum(counts.rejected.values()) == 2


def test_a_mask_that_is_full_stops(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    with pytest.raises(ValueError, match="every token is supervised, prompts too"):
        encoded(tmp_path, [turn("a", "b")], Rendering(load_tokenizer("demo"), template, {}, "all"))


def test_duplicates_are_counted_and_have_one_key(tmp_path: Path, rendering: Rendering) -> None:
    counts, shards = encoded(tmp_path, [turn("a", "b"), turn("a", "b"), turn("a", "c")], rendering)
    assert counts.duplicates == 1
    assert len(np.unique(shards.keys_N)) == 2


def test_the_number_of_workers_changes_no_byte(
    tmp_path: Path, rendering: Rendering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash.data.workers.ITEMS_BEFORE_WORKERS", 2)
    rows = [turn(str(number), "x" * (number % 50 + 1)) for number in range(1300)]
    rows[100] = rows[1100] = {"messages": []}
    rows[1200] = rows[3]
    made = {}
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        counts = encode_file(folder / "rows.jsonl", folder, rendering, RULES, workers)
        assert (counts.samples, counts.duplicates) == (1298, 1)
        made[workers] = [
            (folder / name).read_bytes() for name in ("samples.arrow", "rejected.jsonl", "counts.json")
        ]
    assert made[1] == made[2]


def test_an_error_in_a_worker_is_the_first_of_the_file(
    tmp_path: Path, rendering: Rendering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash.data.workers.ITEMS_BEFORE_WORKERS", 2)
    rows = [turn(str(number), "b") for number in range(1300)]
    rows[1100] = rows[1250] = turn("a", "x = 1\n" * 60)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    strict = Rules("auto", 64, "error", 0.5, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"row 1100 has \d+ tokens"):
        encode_file(tmp_path / "rows.jsonl", tmp_path, rendering, strict, 2)


def test_progress_is_shown(tmp_path: Path, rendering: Rendering, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(turn("a", "b")) + "\n")
    encode_file(tmp_path / "rows.jsonl", tmp_path, rendering, RULES, progress_seconds=0.0)
    assert capsys.readouterr().out.startswith("rows.jsonl: 1 rows, ")


def test_a_row_with_the_mask_token_is_rejected(tmp_path: Path, rendering: Rendering) -> None:
    mask = mask_token_of(rendering.tokenizer, None)
    assert mask == rendering.tokenizer.mask_token_id is not None
    assert mask_token_of(rendering.tokenizer, 7) == 7
    rules = Rules("auto", 64, "truncate", 0.5, 0.0, 0.0, mask)
    rows = [turn("a", "b"), turn("a", f"b{rendering.tokenizer.mask_token}c")]
    counts, shards = encoded(tmp_path, rows, rendering, rules)
    assert counts.rejected == {f"the mask token {mask} stands in the row": 1}
    assert len(shards) == 1


def test_ids_outside_the_vocabulary_are_rejected(tmp_path: Path, rendering: Rendering) -> None:
    last = max(rendering.tokenizer.get_vocab().values())
    rows = [{"input_ids": [5, number], "loss_mask": [0, 1]} for number in (last, last + 1)]
    counts, shards = encoded(tmp_path, rows, rendering)
    assert counts.rejected == {"input_ids holds something that is no token id of the target's vocabulary": 1}
    assert shards.sample(0)[0].tolist() == [5, last]


MEASURE = """
import resource, sys
from pathlib import Path
from dflash.data.encode import Rules, encode_file
from dflash.data.rendering import Rendering
from dflash.data.tokenizer import load_tokenizer, mask_token_of
path = Path(sys.argv[1])
encode_file(path, path.parent, Rendering(load_tokenizer("demo"), None, {}, "all"), Rules("messages", 64, "truncate", 0.5, 0.1, 0.1))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_kilobytes(folder: Path, num_rows: int) -> int:
    """Largest resident memory of a process that encodes so many short rows."""
    path = folder / f"{num_rows}" / "rows.jsonl"
    path.parent.mkdir()
    with path.open("w") as file:
        file.writelines(json.dumps(turn(str(number), "b")) + "\n" for number in range(num_rows))
    words = [sys.executable, "-c", MEASURE, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("few", "many"), [(1_500, 6_000), pytest.param(10_000, 100_000, marks=pytest.mark.full)]
)
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, few: int, many: int) -> None:
    assert peak_kilobytes(tmp_path, many) <= 1.05 * peak_kilobytes(tmp_path, few)


TEXTS = st.text(max_size=8) | st.sampled_from(["\0", "\ud800", "<|mask|>", "<|end|>", "x" * 100_000])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "from", "value", "type", "text"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | VALUES, "content": TEXTS | VALUES},
    optional={"tool_calls": VALUES, "name": VALUES, "thinking": VALUES},
)
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "messages",
            "conversations",
            "input_ids",
            "loss_mask",
            "labels",
            "text",
            "prompt",
            "response",
            "output",
        ]
    ),
    VALUES | st.lists(TURNS, max_size=3) | st.lists(st.integers(), max_size=4),
    max_size=4,
)
LINES = st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")) | (FIELDS | VALUES).map(
    lambda row: json.dumps(row).encode()
)
GOOD = {
    "messages": turn("known", "good"),
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "prompt_response": {"prompt": "a", "response": "b"},
    "tokens": {"input_ids": [5, 6], "loss_mask": [0, 1]},
    "text": {"text": "import os"},
}


def check_accounts(folder: Path, rendering: Rendering, dialect: str, lines: list[bytes]) -> None:
    """Encode the lines behind a good one; every line is a sample (or several pieces of one) or a rejected row."""
    (folder / "rows.jsonl").write_bytes(
        b"".join(line + b"\n" for line in [json.dumps(GOOD[dialect]).encode(), *lines])
    )
    lenient = Rules(dialect, 64, "truncate", 1.0, 0.1, 0.1, rendering.tokenizer.mask_token_id)
    counts = encode_file(folder / "rows.jsonl", folder, rendering, lenient)
    side = (folder / "rejected.jsonl").read_text().splitlines()
    assert counts.rows == len(lines) + 1 == counts.samples + sum(counts.rejected.values())
    assert len(side) == sum(counts.rejected.values())


@pytest.mark.parametrize("dialect", GOOD)
@settings(max_examples=25)
@given(lines=st.lists(LINES, min_size=1, max_size=6))
def test_any_rows_are_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, rendering: Rendering, dialect: str, lines: list[bytes]
) -> None:
    check_accounts(tmp_path_factory.mktemp("fuzz"), rendering, dialect, lines)


@pytest.mark.full
@pytest.mark.parametrize("dialect", GOOD)
@settings(max_examples=2000)
@given(lines=st.lists(LINES, min_size=1, max_size=6))
def test_any_rows_are_accounted_for_in_full(
    tmp_path_factory: pytest.TempPathFactory, rendering: Rendering, dialect: str, lines: list[bytes]
) -> None:
    check_accounts(tmp_path_factory.mktemp("fuzz"), rendering, dialect, lines)
