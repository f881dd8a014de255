"""Rows in = samples + rejected rows, whatever the rows; limits, lengths and masks as the config says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data.encode import Counts, Rules, encode_file
from dflash.data.rendering import Rendering
from dflash.data.shards import Shards
from dflash.data.tokenizer import load_tokenizer

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


FIELDS = st.dictionaries(
    st.sampled_from(["messages", "input_ids", "loss_mask", "text", "prompt"]),
    st.none()
    | st.integers()
    | st.text(max_size=8)
    | st.lists(st.integers() | st.text(max_size=3), max_size=4),
    max_size=4,
)


@settings(max_examples=40)
@given(rows=st.lists(FIELDS, min_size=1, max_size=6))
def test_any_rows_are_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, rendering: Rendering, rows: list[Any]
) -> None:
    lenient = Rules("messages", 64, "split", 1.0, 0.1, 0.1)
    good = turn("known", "good")
    counts, train = encoded(tmp_path_factory.mktemp("fuzz"), [good, *rows], rendering, lenient)
    assert counts.rows == len(rows) + 1 == counts.samples + sum(counts.rejected.values())
    assert len(train) <= counts.samples
