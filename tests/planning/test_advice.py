"""Advice on the split agrees with arithmetic where arithmetic is enough."""

import numpy as np
import pytest

from dflash.planning.advice import Rates, Rings, Stretch, all_splits, cell_seconds, recommend
from dflash.training.stream import targets_of_cells
from dflash.transfer.roles import Topology

ROOMY = Rings(packets=4, num_bytes=1 << 40, packet_bytes=1)


def rates(target: float, drafter: float, watts: tuple[float | None, float | None] = (600.0, 100.0)) -> Rates:
    return Rates(
        width_K=np.array([64, 128]),
        rows_K=np.array([16, 8]),
        target_seconds_K=np.full(2, target),
        drafter_seconds_K=np.full(2, drafter),
        step_seconds=0.0,
        reduce_seconds=0.0,
        packet_seconds_per_token=0.0,
        busy_watts=watts[0],
        idle_watts=watts[1],
    )


def stretch(steps: int = 100, cells: int = 8) -> Stretch:
    width = np.tile([64, 128], steps * cells // 2)
    return Stretch(np.repeat(np.arange(steps), cells), 1024 // width, width, np.full(steps * cells, 900))


def test_a_partial_cell_costs_its_share_and_an_empty_one_nothing() -> None:
    cells = Stretch(np.zeros(3, int), np.array([8, 4, 0]), np.array([64, 128, 0]), np.array([1, 1, 0]))
    target, drafter = cell_seconds(rates(2.0, 1.0), cells)
    np.testing.assert_allclose(target, [1.0, 1.0, 0.0])
    np.testing.assert_allclose(drafter, [0.5, 0.5, 0.0])


def test_a_width_that_was_not_measured_is_named() -> None:
    cells = Stretch(np.zeros(1, int), np.array([1]), np.array([96]), np.array([1]))
    with pytest.raises(ValueError, match=r"measured for widths \[64, 128\], but the plan has a width of 96"):
        cell_seconds(rates(1.0, 1.0), cells)


def test_rates_of_splits_are_those_of_the_slower_side() -> None:
    # a target takes six times as long as the drafter: six targets feed one drafter exactly
    splits = {each.topology: each for each in all_splits(rates(6.0, 1.0), stretch(), 8, 10**6, ROOMY)}
    assert splits["targets: 6, drafters: 1"].tokens_per_second == pytest.approx(900.0, rel=0.03)
    assert splits["targets: 3, drafters: 1"].tokens_per_second == pytest.approx(450.0, rel=0.03)
    assert splits["targets: 7, drafters: 1"].tokens_per_second == pytest.approx(900.0, rel=0.03)
    assert splits["targets: 7, drafters: 1"].target_idle_share == pytest.approx(1 / 7, abs=0.02)
    # a colocated rank does both: 7 seconds a cell
    assert splits["colocated: 8"].tokens_per_second == pytest.approx(8 * 900 / 7, rel=0.01)


def test_a_gpu_that_buys_nothing_is_left_out() -> None:
    splits = [
        each
        for each in all_splits(rates(6.0, 1.0), stretch(), 8, 10**9, ROOMY)
        if not each.colocated and each.drafters == 1
    ]
    chosen, why = recommend(splits)
    assert (chosen.targets, chosen.drafters) == (6, 1)
    assert "1 fewer GPUs, saving" in why or "is the fastest" in why
    assert chosen.watts is not None and chosen.kilowatt_hours is not None
    assert chosen.kilowatt_hours == pytest.approx(chosen.watts * chosen.days * 24 / 1000)
    assert chosen.joules_per_token == pytest.approx(chosen.watts / chosen.tokens_per_second)


def test_unknown_power_stays_unknown() -> None:
    splits = all_splits(rates(1.0, 1.0, (None, None)), stretch(10), 3, 10**6, ROOMY)
    assert all(each.watts is None and each.kilowatt_hours is None for each in splits)
    assert {each.topology for each in splits} == {
        "targets: 1, drafters: 1",
        "targets: 1, drafters: 2",
        "targets: 2, drafters: 1",
        "colocated: 1",
        "colocated: 2",
        "colocated: 3",
    }
    assert splits[0].row()["topology"] == splits[0].topology


def test_cells_are_dealt_inside_groups_as_a_training_deals_them() -> None:
    drafters_C = np.array([0, 0, 1, 0, 0, 1])
    dealt_C = targets_of_cells(np.ones(6), drafters_C, Topology(4, 2, False))
    assert dealt_C.tolist() == [0, 1, 2, 0, 1, 3]
    assert targets_of_cells(np.ones(6), drafters_C, Topology(2, 2, True)).tolist() == drafters_C.tolist()


def test_rings_are_bounded_in_packets_and_in_bytes() -> None:
    assert Rings(4, 100, 10).places(3) == 10 and Rings(4, 1000, 10).places(3) == 12
    with pytest.raises(ValueError, match="ring_bytes is 15"):
        all_splits(rates(1.0, 1.0), stretch(2), 2, 10**6, Rings(4, 15, 10))
