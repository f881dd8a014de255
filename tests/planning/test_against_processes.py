"""The simulator beside the real channel with real processes: the same cells, in the same order, on the same ranks."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.synthetic import Synthetic, played, run


@pytest.mark.parametrize("topology", ["targets: 1, drafters: 1", "targets: 2, drafters: 2"])
def test_processes_do_what_is_played(topology: str, tmp_path: Path) -> None:
    synthetic = Synthetic.make(
        topology,
        np.random.default_rng(1),
        num_steps=4,
        cells_per_step=6,
        target_seconds=0.002,
        drafter_seconds=0.002,
        ring_packets=2,
        packet_elements=100,
    )
    ran = run(synthetic, tmp_path / "run")
    drafters = range(synthetic.topology.num_drafters)
    assert ran.taken == [np.flatnonzero(synthetic.work.drafter_C == each).tolist() for each in drafters]
    told = played(synthetic, ran)
    # The same cells on the same ranks: what is played is busy for exactly as long as the processes were.
    for drafter in drafters:
        mine = synthetic.work.drafter_C == drafter
        assert told.drafter_busy_D[drafter] == pytest.approx(ran.drafter_seconds_C[mine].sum())
    assert [len(taken) for taken in ran.taken] == [
        int((synthetic.work.drafter_C == each).sum()) for each in drafters
    ]
