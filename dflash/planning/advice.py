"""Which ranks should be targets and which drafters: every split of the GPUs, played with measured rates.

Both sides are measured alone, on the user's machine, at the plan's shapes and the configured anchors; the simulation
then plays a stretch of the plan on each split. What decides is the rate; among splits that are nearly as fast, the one
with the fewest GPUs, because a GPU that waits still draws power (in the run this project rebuilds, dropping one of seven
targets cost nothing and saved about 1 kW).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dflash.batching.dealing import deal_drafters
from dflash.planning.simulation import Played, Work, play, play_colocated
from dflash.training.stream import targets_of_cells
from dflash.transfer.packet import ring_size
from dflash.transfer.roles import Topology

NEARLY_AS_FAST = 0.98
"""Share of the best rate from which a split with fewer GPUs is preferred."""
SECONDS_PER_DAY = 86400.0


@dataclass(frozen=True)
class Rates:
    """What was measured of both sides alone.

    Attributes:
        width_K: widths of the plan's shapes, increasing. rows_K: rows at which each was measured.
        target_seconds_K, drafter_seconds_K: a micro-batch of that shape; forward; forward and backward.
        step_seconds: the optimizer's update. reduce_seconds: the drafters' all-reduce, where there are several.
        packet_seconds_per_token: a packet's way, for each padded token.
        busy_watts, idle_watts: of a GPU (or the machine); None where no counter exists.
    """

    width_K: np.ndarray
    rows_K: np.ndarray
    target_seconds_K: np.ndarray
    drafter_seconds_K: np.ndarray
    step_seconds: float
    reduce_seconds: float
    packet_seconds_per_token: float
    busy_watts: float | None
    idle_watts: float | None


@dataclass(frozen=True)
class Stretch:
    """A run of whole steps of the plan, a value a cell in plan order: step, rows, width, useful tokens. int64."""

    step_C: np.ndarray
    rows_C: np.ndarray
    width_C: np.ndarray
    useful_tokens_C: np.ndarray


@dataclass(frozen=True)
class Rings:
    """What bounds the packets in flight: their number for each pair, and the bytes of a ring; the largest packet's bytes."""

    packets: int
    num_bytes: int
    packet_bytes: int

    def places(self, num_peers: int) -> int:
        """Packets in the ring of a rank that exchanges them with so many others.

        Raises:
            ValueError: not even two fit.
        """
        return ring_size(self.packet_bytes, self.packets * num_peers, self.num_bytes)


@dataclass(frozen=True)
class Split:
    """One topology and what it is expected to do. `colocated` is 0, or the number of ranks that play both.

    `tokens_per_second` counts useful tokens; shares are of the whole time; watts, kilowatt_hours and joules_per_token
    are None where no counter exists.
    """

    targets: int
    drafters: int
    colocated: int
    tokens_per_second: float
    supply: float
    demand: float
    target_idle_share: float
    drafter_idle_share: float
    days: float
    watts: float | None
    kilowatt_hours: float | None
    joules_per_token: float | None

    @property
    def num_gpus(self) -> int:
        """GPUs in use."""
        return self.colocated or self.targets + self.drafters

    @property
    def topology(self) -> str:
        """As `runtime.topology` writes it."""
        return (
            f"colocated: {self.colocated}"
            if self.colocated
            else f"targets: {self.targets}, drafters: {self.drafters}"
        )

    def row(self) -> dict[str, Any]:
        """A row of the table."""
        return {"topology": self.topology, "gpus": self.num_gpus, **asdict(self)}


def cell_seconds(rates: Rates, stretch: Stretch) -> tuple[np.ndarray, np.ndarray]:
    """Predicted target and drafter seconds of each cell: the measured shape's, in proportion to its rows.

    Raises:
        ValueError: a width that was not measured.
    """
    shape_C = np.searchsorted(rates.width_K, stretch.width_C)
    known = (shape_C < len(rates.width_K)) & (
        rates.width_K[np.minimum(shape_C, len(rates.width_K) - 1)] == stretch.width_C
    )
    working = stretch.rows_C > 0
    if not (known | ~working).all():
        missing = int(stretch.width_C[working & ~known][0])
        raise ValueError(
            f"the rates were measured for widths {rates.width_K.tolist()}, but the plan has a width of {missing}"
        )
    shape_C = np.where(working, shape_C, 0)
    share_C = np.where(working, stretch.rows_C / rates.rows_K[shape_C], 0.0)
    return rates.target_seconds_K[shape_C] * share_C, rates.drafter_seconds_K[shape_C] * share_C


def all_splits(rates: Rates, stretch: Stretch, num_gpus: int, total_tokens: int, rings: Rings) -> list[Split]:
    """Every topology of at most `num_gpus` GPUs, the fastest first.

    Args:
        rates: measured.
        stretch: steps to play; a few hundred are enough.
        num_gpus: what the machine has.
        total_tokens: useful tokens of the whole training, for days and energy.
        rings: of targets and drafters.

    Raises:
        ValueError: a width that was not measured, or a packet that does not fit twice into a ring.
    """
    topologies = [
        Topology(targets, drafters, False)
        for targets in range(1, num_gpus)
        for drafters in range(1, num_gpus - targets + 1)
    ]
    topologies += [Topology(ranks, ranks, True) for ranks in range(1, num_gpus + 1)]
    splits = [_split(rates, stretch, topology, total_tokens, rings) for topology in topologies]
    return sorted(splits, key=lambda each: -each.tokens_per_second)


def recommend(splits: list[Split]) -> tuple[Split, str]:
    """The split to take, and why in a sentence."""
    best = max(splits, key=lambda each: each.tokens_per_second)
    near = [each for each in splits if each.tokens_per_second >= NEARLY_AS_FAST * best.tokens_per_second]
    chosen = min(near, key=lambda each: (each.num_gpus, -each.tokens_per_second))
    rate = f"{chosen.tokens_per_second:,.0f} useful tokens/s, {chosen.days:.2f} days for the whole plan"
    if chosen is best:
        return chosen, f"{chosen.topology} is the fastest: {rate}"
    share = chosen.tokens_per_second / best.tokens_per_second
    saved = (
        "" if chosen.watts is None or best.watts is None else f", saving {best.watts - chosen.watts:,.0f} W"
    )
    return chosen, (
        f"{chosen.topology} reaches {share:.1%} of the fastest ({best.topology}) on {best.num_gpus - chosen.num_gpus} fewer "
        f"GPUs{saved}: {rate}"
    )


def _split(rates: Rates, stretch: Stretch, topology: Topology, total_tokens: int, rings: Rings) -> Split:
    played = _played(rates, stretch, topology, rings)
    seconds = total_tokens / played.tokens_per_second if played.tokens_per_second else float("inf")
    target_busy, drafter_busy = played.target_busy_T, played.drafter_busy_D
    if topology.colocated:
        target_busy = drafter_busy = target_busy + drafter_busy
    busy = drafter_busy if topology.colocated else np.concatenate([target_busy, drafter_busy])
    watts = None
    if rates.busy_watts is not None and rates.idle_watts is not None:
        share = busy / played.total_seconds
        watts = float((rates.idle_watts + (rates.busy_watts - rates.idle_watts) * share).sum())
    return Split(
        targets=0 if topology.colocated else topology.num_targets,
        drafters=0 if topology.colocated else topology.num_drafters,
        colocated=topology.num_drafters if topology.colocated else 0,
        tokens_per_second=played.tokens_per_second,
        supply=played.supply,
        demand=played.demand,
        target_idle_share=float(1 - target_busy.mean() / played.total_seconds),
        drafter_idle_share=float(1 - drafter_busy.mean() / played.total_seconds),
        days=seconds / SECONDS_PER_DAY,
        watts=watts,
        kilowatt_hours=None if watts is None else watts * seconds / 3.6e6,
        joules_per_token=None if watts is None else watts / played.tokens_per_second,
    )


def _played(rates: Rates, stretch: Stretch, topology: Topology, rings: Rings) -> Played:
    target_C, drafter_C = cell_seconds(rates, stretch)
    dealt_C = _drafters(
        stretch.step_C, target_C + drafter_C if topology.colocated else drafter_C, topology.num_drafters
    )
    work = Work(
        step_C=stretch.step_C,
        target_C=targets_of_cells(target_C, dealt_C, topology),
        drafter_C=dealt_C,
        target_seconds_C=target_C,
        drafter_seconds_C=drafter_C,
        transfer_seconds_C=rates.packet_seconds_per_token * stretch.rows_C * stretch.width_C,
        useful_tokens_C=stretch.useful_tokens_C,
    )
    step_seconds = rates.step_seconds + (rates.reduce_seconds if topology.num_drafters > 1 else 0.0)
    if topology.colocated:
        return play_colocated(work, topology.num_drafters, step_seconds=step_seconds)
    return play(
        work,
        topology.num_targets,
        topology.num_drafters,
        send_places=rings.places(1),
        receive_places=rings.places(len(topology.targets_of(0))),
        step_seconds=step_seconds,
    )


def _drafters(step_C: np.ndarray, costs_C: np.ndarray, num_drafters: int) -> np.ndarray:
    """The drafter of each cell, dealt step by step."""
    borders = np.flatnonzero(np.diff(step_C)) + 1
    return np.concatenate([deal_drafters(costs_G, num_drafters) for costs_G in np.split(costs_C, borders)])
