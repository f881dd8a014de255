"""Anchors by key, caps, documents; supervised slots against loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.model.anchors import (
    AnchorRules,
    Anchors,
    choose_anchors,
    padded_rows,
    refuse_mask_token,
    supervised_slots,
)

ALL = AnchorRules(share=1.0, max_per_sample=512, max_per_micro_batch=4096, seed=0)


def one_a_row(masks: list[np.ndarray], keys: list[int], rules: AnchorRules = ALL, epoch: int = 0) -> Anchors:
    return choose_anchors(masks, np.array(keys, dtype=np.uint64), np.arange(len(masks) + 1), epoch, rules)


def mask_of(text: str) -> np.ndarray:
    return np.array([int(each) for each in text], dtype=np.uint8)


def places(anchors: Anchors, row: int = 0) -> list[int]:
    return anchors.anchors_A[anchors.rows_A == row].tolist()


def test_valid_where_a_supervised_token_follows_one() -> None:
    anchors = one_a_row([mask_of("0011101100"), mask_of("1"), mask_of("0000"), mask_of("11")], [1, 2, 3, 4])
    assert [places(anchors, row) for row in range(4)] == [[2, 3, 6], [], [], [0]]
    assert anchors.num_cut == 0


masks_of_rows = st.lists(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=3),
    min_size=1,
    max_size=4,
)


@given(rows=masks_of_rows, block_size=st.integers(2, 6), seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_anchors_and_slots_equal_loops(rows: list[list[list[int]]], block_size: int, seed: int) -> None:
    flat = [np.array(document, dtype=np.uint8) for row in rows for document in row]
    offsets = np.cumsum([0, *map(len, rows)])
    anchors = choose_anchors(
        flat, np.arange(len(flat), dtype=np.uint64), offsets, 3, AnchorRules(1.0, 512, 4096, seed)
    )
    wanted_anchors, wanted_slots = [], []
    for number, row in enumerate(rows):
        begin = 0
        for document in row:
            for place in range(len(document) - 1):
                if document[place] and document[place + 1]:
                    for slot in range(1, block_size):
                        if place + slot < len(document) and document[place + slot]:
                            wanted_slots.append((len(wanted_anchors), slot, number, begin + place + slot))
                    wanted_anchors.append((number, begin + place, begin, begin + len(document)))
            begin += len(document)
    mine = zip(anchors.rows_A, anchors.anchors_A, anchors.starts_A, anchors.ends_A, strict=True)
    assert [tuple(map(int, each)) for each in mine] == wanted_anchors
    width = max(sum(map(len, row)) for row in rows)
    slots = supervised_slots(anchors, padded_rows(flat, offsets, width), block_size)
    assert [tuple(map(int, each)) for each in zip(*vars(slots).values(), strict=True)] == wanted_slots


def test_a_samples_anchors_do_not_depend_on_the_batch() -> None:
    rules = AnchorRules(share=0.4, max_per_sample=9, max_per_micro_batch=4096, seed=5)
    masks = [np.ones(length, dtype=np.uint8) for length in (40, 17, 64)]
    alone = [places(one_a_row([mask], [key], rules, 2)) for mask, key in zip(masks, (7, 8, 9), strict=True)]
    turned = one_a_row(masks[::-1], [9, 8, 7], rules, 2)
    assert [places(turned, row) for row in range(3)] == alone[::-1]
    packed = choose_anchors(masks, np.array([7, 8, 9], dtype=np.uint64), np.array([0, 3]), 2, rules)
    shifted = [alone[0], [40 + place for place in alone[1]], [57 + place for place in alone[2]]]
    assert packed.anchors_A.tolist() == [place for each in shifted for place in each]
    assert [len(each) for each in alone] == [9, 7, 9]


def test_epoch_seed_and_sample_change_the_draw() -> None:
    mask, rules = np.ones(200, dtype=np.uint8), AnchorRules(0.2, 512, 4096, 0)
    first = places(one_a_row([mask], [1], rules, 0))
    assert first == places(one_a_row([mask], [1], rules, 0))
    others = [
        one_a_row([mask], [2], rules, 0),
        one_a_row([mask], [1], rules, 1),
        one_a_row([mask], [1], AnchorRules(0.2, 512, 4096, 1), 0),
    ]
    for other in others:
        assert len(set(first) & set(places(other))) < 30


def test_every_position_is_chosen_equally_often() -> None:
    rules = AnchorRules(0.25, 512, 4096, 0)
    counts = np.zeros(40)
    for key in range(4000):
        counts[one_a_row([np.ones(41, dtype=np.uint8)], [key], rules).anchors_A] += 1
    # 1,000 expected each; the deviation of a draw of 10 in 40 is 27
    assert np.abs(counts - 1000).max() < 5 * 27


def test_the_share_is_rounded_up() -> None:
    assert len(one_a_row([np.ones(4, dtype=np.uint8)], [1], AnchorRules(0.01, 512, 4096, 0)).anchors_A) == 1


def test_the_micro_batch_cap_keeps_the_smallest_keys_and_counts_what_it_cut() -> None:
    masks, keys = [np.ones(50, dtype=np.uint8)] * 3, [1, 2, 3]
    sizes = [20, 40, 80, 147]
    chosen = [one_a_row(masks, keys, AnchorRules(1.0, 512, size, 0)) for size in sizes]
    pairs = [set(zip(each.rows_A.tolist(), each.anchors_A.tolist(), strict=True)) for each in chosen]
    assert [len(each) for each in pairs] == sizes and [each.num_cut for each in chosen] == [127, 107, 67, 0]
    assert pairs[0] < pairs[1] < pairs[2] < pairs[3]
    assert all(
        list(zip(each.rows_A, each.anchors_A, strict=True))
        == sorted(zip(each.rows_A, each.anchors_A, strict=True))
        for each in chosen
    )


def test_a_long_neighbor_does_not_starve_short_documents() -> None:
    """One long and ten short documents in a row: caps are a document's, not a row's (speculators #1071)."""
    masks = [np.ones(2000, dtype=np.uint8)] + [np.ones(187, dtype=np.uint8)] * 10
    anchors = choose_anchors(masks, np.arange(11, dtype=np.uint64), np.array([0, 11]), 0, ALL)
    assert np.unique(anchors.starts_A, return_counts=True)[1].tolist() == [512] + [186] * 10


def test_labels_never_come_from_the_next_document() -> None:
    """The second document starts with supervised tokens (speculators 0.9.0 lets the first one's blocks learn them)."""
    masks = [mask_of("0111"), mask_of("1111")]
    offsets = np.array([0, 2])
    anchors = choose_anchors(masks, np.arange(2, dtype=np.uint64), offsets, 0, ALL)
    slots = supervised_slots(anchors, padded_rows(masks, offsets, 10), 5)
    for block, place in zip(slots.blocks_M, slots.places_M, strict=True):
        assert place < anchors.ends_A[block]
    assert slots.places_M[slots.blocks_M == 1].tolist() == [3]


def test_a_batch_without_documents_has_no_anchors() -> None:
    anchors = choose_anchors([], np.zeros(0, dtype=np.uint64), np.zeros(1, dtype=np.int64), 0, ALL)
    assert len(anchors.anchors_A) == 0
    assert len(supervised_slots(anchors, np.zeros((0, 8), dtype=np.uint8), 4).slots_M) == 0


def test_the_mask_token_in_the_data_is_refused() -> None:
    refuse_mask_token([np.array([1, 2]), np.array([3])], 4)
    with pytest.raises(
        ValueError, match=r"mask token 4 stands in the data \(sample 1 of a micro-batch, position 2\)"
    ):
        refuse_mask_token([np.array([1, 2]), np.array([3, 3, 4])], 4)
