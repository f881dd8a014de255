"""The length to be quoted comes first: cut at the target's first loop, with its share, the whole text beside it."""

import polars as pl

from dflash.report.acceptance_pairs import cut_first, pairs

CUT = "pooled; up to the first repeated 8-gram"


def row(temperature: float, definition: str, value: float, share: float) -> dict[str, object]:
    return {
        "drafter": "dflash", "temperature": temperature, "prompt_set": "stdlib", "definition": definition, "value": value,
        "lower": value - 0.1, "upper": value + 0.1, "counted_share": share,
    }  # fmt: skip


def test_cut_and_whole_are_one_row_whatever_their_order() -> None:
    rows = [row(0.0, "pooled", 3.0, 1.0), row(0.0, CUT, 1.5, 0.338), row(1.0, "pooled", 1.2, 1.0)]
    for table in (rows, rows[::-1]):
        greedy, sampled = sorted(pairs(pl.DataFrame(table)), key=lambda pair: pair.whole["temperature"])
        assert greedy.cells() == (
            "dflash",
            "0",
            "stdlib",
            "1.50 (1.40 to 1.60)",
            "33.8%",
            "3.00 (2.90 to 3.10)",
        )
        assert sampled.cells() == ("dflash", "1", "stdlib", "not cut", "", "1.20 (1.10 to 1.30)")


def test_the_sentence_quotes_the_cut_first() -> None:
    greedy = pairs(pl.DataFrame([row(0.0, "pooled", 3.0, 1.0), row(0.0, CUT, 1.5, 0.338)]))[0].sentence()
    assert greedy.startswith(
        "acceptance length 1.50 (1.40 to 1.60) tokens per target forward, counted up to the first repeated 8-gram (33.8% of the tokens)"
    )
    assert "whole texts 3.00 (2.90 to 3.10)" in greedy
    sampled = pairs(pl.DataFrame([row(1.0, "pooled", 1.2, 1.0)]))[0].sentence()
    assert "1.20 (1.10 to 1.30) tokens per target forward, whole texts (dflash, temperature 1" in sampled


def test_definitions_that_cut_come_first() -> None:
    assert cut_first(["pooled", CUT, "mean of prompts"]) == [CUT, "pooled", "mean of prompts"]
