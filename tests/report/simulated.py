"""Simulated training runs, healthy and faulty, for the verdict. No code is shared with what is tested."""

from typing import Literal

import numpy as np

from dflash.report.loss_composition import History

Fault = Literal["none", "plan order", "divergence", "blow-up", "dead drafter"]
NOISE_NATS = (0.05, 0.15, 0.4)
CELLS = 4


def simulate(fault: Fault, noise_nats: float, seed: int) -> History:
    """One run of 150 to 1,200 steps: a falling loss, buckets of different difficulty, heavy-tailed cells, drift, and perhaps a fault."""
    rng = np.random.default_rng(
        [
            seed,
            ["none", "plan order", "divergence", "blow-up", "dead drafter"].index(fault),
            int(noise_nats * 1000),
        ]
    )
    steps = int(rng.choice([150, 300, 600, 1200]))
    period = int(steps / rng.uniform(1.3, 9.0))
    num_buckets = int(rng.integers(3, 9))
    widths = np.round(np.geomspace(40, 1024, num_buckets))
    share = rng.dirichlet(np.full(num_buckets, 4.0))
    bucket = compose(rng, steps, period, num_buckets, share, is_sorted=fault == "plan order")
    length = widths[bucket] * rng.uniform(0.7, 1.0, bucket.shape)
    effect = -rng.uniform(0.1, 0.5) * np.log2(widths / widths[0])
    time = np.arange(steps)
    floor, height = rng.uniform(1.5, 3.0), rng.uniform(3.0, 5.0)
    fallen = (1 + time / (steps * rng.uniform(0.02, 0.15))) ** -rng.uniform(0.5, 1.2)
    if rng.random() < 0.3:
        # A run that has converged: the second half is level.
        fallen = np.exp(-time / (steps * rng.uniform(0.03, 0.1)))
    trend = floor + height * fallen
    norm = np.exp(rng.normal(0, 0.35, steps)) * (0.4 + fallen)
    norm[rng.random(steps) < 0.01] *= 6
    acceptance: float | None = float(rng.uniform(1.3, 3.5))
    skipped = np.zeros(steps, bool)
    if fault == "dead drafter":
        trend, effect, acceptance, norm = dead(rng, steps, effect)
    if fault == "divergence":
        start = int(steps * rng.uniform(0.4, 0.7))
        trend = trend[np.minimum(time, start)] + rng.uniform(0.3, 1.0) * np.clip(
            (time - start) / (steps - start), 0, None
        )
    if fault == "blow-up":
        trend, norm, skipped = blow_up(rng, trend, norm)
    drift = wander(rng, steps, 0.1 * noise_nats)
    tails = rng.standard_t(4, bucket.shape) / np.sqrt(2)
    # Buckets draw apart while the loss falls.
    spread = effect[bucket] * (1 - 0.5 * fallen)[:, None]
    cell_loss = (trend + drift)[:, None] + spread + noise_nats * tails
    weight = rng.uniform(0.5, 1.5, bucket.shape)
    loss = (cell_loss * weight).sum(axis=1) / weight.sum(axis=1)
    loss[skipped], cell_loss[skipped] = np.nan, np.nan
    return History(
        step_T=time,
        loss_T=loss,
        gradient_norm_T=np.where(skipped, np.nan, norm),
        skipped_T=skipped,
        cell_step_C=np.repeat(time, CELLS),
        cell_bucket_C=bucket.ravel(),
        cell_length_C=length.ravel(),
        cell_loss_C=cell_loss.ravel(),
        cell_weight_C=weight.ravel(),
        period_steps=period,
        acceptance=acceptance,
    )


def compose(rng, steps: int, period: int, num_buckets: int, share, *, is_sorted: bool):
    """Buckets [steps, cells]: drawn at random, or climbing from short to long in every epoch."""
    if not is_sorted:
        return rng.choice(num_buckets, (steps, CELLS), p=share)
    place = ((np.arange(steps) % period)[:, None] + np.arange(CELLS) / CELLS) / period
    return np.minimum(np.searchsorted(np.cumsum(share), place), num_buckets - 1)


def dead(rng, steps: int, effect):
    """Nothing is learned; or only how frequent tokens are, which the acceptance length alone gives away."""
    time = np.arange(steps)
    if rng.random() < 0.5:
        return np.full(steps, np.log(2048)), effect * 0.02, None, np.exp(rng.normal(0, 0.3, steps)) * 1e-3
    trend = 6.5 + 2.0 * np.exp(-time / (0.03 * steps))
    return trend, effect * 0.1, float(rng.uniform(1.0, 1.03)), np.exp(rng.normal(0, 0.3, steps))


def blow_up(rng, trend, norm):
    """A sudden rise that stays or comes back slowly, with a large gradient, at times with steps that are not finite."""
    steps = len(trend)
    start = int(steps * rng.uniform(0.2, 0.9))
    after = np.clip(np.arange(steps) - start, 0, None).astype(float)
    rise = rng.uniform(0.8, 4.0) * (1 - np.exp(-after / rng.uniform(1, 8)))
    if rng.random() < 0.5:
        rise *= np.exp(-after / (0.3 * steps))
    swollen = norm * (1 + rng.uniform(5, 50) * np.exp(-after / 20) * (np.arange(steps) >= start))
    skipped = np.zeros(steps, bool)
    if rng.random() < 0.3:
        skipped[start + 2 : start + 2 + int(rng.integers(1, 8))] = True
    return trend + rise, swollen, skipped


def wander(rng, steps: int, size: float):
    """A stationary drift that forgets half of itself in about seven steps."""
    values, state = np.empty(steps), 0.0
    for number, kick in enumerate(rng.normal(0, 1, steps)):
        state = 0.9 * state + np.sqrt(1 - 0.81) * kick
        values[number] = size * state
    return values
