"""Every shipped configuration of the Triton kernels compiles for real cards, without spills, within their shared memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash.kernels import ahead
from dflash.kernels.ahead import compile_all
from dflash.kernels.attention_tiles import tile_sizes

ROOT = Path(__file__).parents[2]


def compiled(*arguments: str) -> list[str]:
    """What `compiled.py` prints, in a process that has no interpreter switched on."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_published_shape_compiles_for_three_cards() -> None:
    assert len(compiled("quick")) == 3


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_shipped_shape_compiles_for_three_cards() -> None:
    assert len(compiled()) == (3 * 15 - 1) * 2 * 2


def test_a_kernel_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ.get("TRITON_INTERPRET"):
        pytest.skip("the interpreter is switched on, so nothing is compiled")
    monkeypatch.setitem(ahead.SHARED_LIMITS, 80, 1 << 10)
    with pytest.raises(
        ValueError, match=r"forward_kernel does not fit a card of capability 80: it spills 0 bytes"
    ):
        compile_all(80, 6, 2, 8, 32, "bf16", False, False, False)


def test_tiles_too_large_for_registers_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        ValueError, match=r"16 query heads a key head x blocks of 16 x heads of 128 .* use smaller blocks"
    ):
        tile_sizes(64, 4, 16, 128)
