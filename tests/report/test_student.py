"""Student's t against SciPy."""

import pytest
from scipy import special, stats

from dflash.report.student import incomplete_beta, quantile, two_sided


@pytest.mark.parametrize("freedom", [1, 2, 2.7, 4, 10, 63, 1000])
@pytest.mark.parametrize("statistic", [0.0, 0.01, 0.7, 1.0, 2.5, 12.0, 300.0])
def test_probability(freedom: float, statistic: float) -> None:
    assert two_sided(-statistic, freedom) == pytest.approx(
        2 * stats.t.sf(statistic, freedom), rel=1e-9, abs=1e-300
    )


@pytest.mark.parametrize("freedom", [1, 2, 3.3, 4, 30])
@pytest.mark.parametrize("coverage", [0.5, 0.95, 0.999])
def test_quantile(freedom: float, coverage: float) -> None:
    assert quantile(coverage, freedom) == pytest.approx(stats.t.ppf(0.5 + coverage / 2, freedom), rel=1e-9)


@pytest.mark.parametrize("x", [0.0, 0.03, 0.5, 0.97, 1.0])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (5.0, 0.5), (2.0, 9.0)])
def test_incomplete_beta(x: float, a: float, b: float) -> None:
    assert incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-10)


def test_an_infinite_statistic_is_impossible() -> None:
    assert two_sided(float("inf"), 3) == 0.0
