"""Model FLOPs utilization (MFU): the share of the devices' peak that goes into products the models need.

A product with W weights costs 2 W FLOPs a state forward and twice that backward (gradients of the weights and of the states). With the
run's useful tokens, anchors of L places each, and supervised slots:

    target   2 target_weights x tokens                              (frozen: forward only)
    drafter  6 context_weights x tokens + 6 block_weights x anchors x L + 4 head_weights x slots
                                                                    (the head is frozen: backward gives no gradient of its weights)

Padding, held-out evaluations, labels from the target and the products inside attention are left out, so the share is a lower bound. It
is taken over the whole time of the steps: waiting lowers it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash.report.tables import RunRecord, numbers


@dataclass(frozen=True)
class Utilization:
    """The MFU of all ranks of a role."""

    share: float
    """0 to 1; NaN where it is unknown."""
    reason: str = ""
    """Why it is unknown."""


def model_flops(run: RunRecord, machine: Mapping[str, Any]) -> dict[str, float]:
    """FLOPs of the whole run by role; NaN where the weights that a token meets are unknown."""
    tokens, anchors, slots = (
        float(numbers(run.metrics, name).sum()) for name in ("useful_tokens", "anchors", "supervised_slots")
    )
    target = machine["target_weights"]
    block_size = len(run.slots) + 1
    found = {
        "target": math.nan if target is None else 2.0 * target * tokens,
        "drafter": 6.0 * machine["context_weights"] * tokens
        + 6.0 * machine["block_weights"] * anchors * block_size
        + 4.0 * machine["head_weights"] * slots,
    }
    return found | {"both": found["target"] + found["drafter"]}


def utilization(run: RunRecord) -> dict[str, Utilization]:
    """The MFU of each role."""
    roles: dict[str, list[Mapping[str, Any]]] = {}
    for machine in run.machines:
        roles.setdefault(machine["role"], []).append(machine)
    return {role: _of_role(run, role, machines) for role, machines in roles.items()}


def _of_role(run: RunRecord, role: str, machines: list[Mapping[str, Any]]) -> Utilization:
    if run.num_topologies > 1:
        return Utilization(math.nan, "the topology changed during the run")
    strange = [machine["device"] for machine in machines if machine["peak_flops"] is None]
    if strange:
        return Utilization(math.nan, f"the peak of this device is not known: {strange[0]}")
    flops = model_flops(run, machines[0])[role]
    if math.isnan(flops):
        return Utilization(math.nan, "the target is a mixture of experts, of which a token meets a part")
    seconds = float(np.nansum(numbers(run.metrics, "seconds")))
    if seconds <= 0:
        return Utilization(math.nan, "no step was timed")
    return Utilization(flops / (seconds * sum(machine["peak_flops"] for machine in machines)))
