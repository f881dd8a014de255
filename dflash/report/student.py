"""Student's t distribution, for intervals from few runs."""

import math


def two_sided(statistic: float, freedom: float) -> float:
    """Probability that |t| is at least as large, with `freedom` degrees of freedom (any positive number)."""
    if math.isinf(statistic):
        return 0.0
    return incomplete_beta(freedom / (freedom + statistic * statistic), freedom / 2, 0.5)


def quantile(coverage: float, freedom: float) -> float:
    """The t between whose negative and positive value a share `coverage` lies."""
    low, high = 0.0, 1.0
    while 1 - two_sided(high, freedom) < coverage:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - two_sided(middle, freedom) < coverage else (low, middle)
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction (Abramowitz and Stegun, 26.5.8)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # Evaluated from the front by the modified method of Lentz.
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * value / a
