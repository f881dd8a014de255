"""What a rank runs on, for the share of the device's peak that a run uses. Unknown is None, never a guess."""

import re
from typing import Any

import torch
from torch import nn

from dflash.model.drafter import Drafter
from dflash.model.target import Target

PEAK_FLOPS = {
    r"NVIDIA A100(?!.*MIG).*": 312e12,
    r"NVIDIA H100 PCIe": 756e12,
    r"NVIDIA H100 NVL": 835e12,
    r"NVIDIA H100 80GB HBM3": 989e12,
    r"NVIDIA H200": 989e12,
    r"NVIDIA B200": 2250e12,
    r"NVIDIA L40S": 362e12,
    r"NVIDIA GeForce RTX 5090": 209.5e12,
    r"NVIDIA RTX PRO 6000 Blackwell Workstation Edition": 503.8e12,
}
"""Names as the driver gives them (regular expressions) -> peak of dense bfloat16 products with float32 sums in FLOP/s.

Sources: NVIDIA's data sheets of the A100, H100, H200, B200 (HGX) and L40S, half of the figures that are given with sparsity; the
architecture papers "NVIDIA RTX Blackwell" and "NVIDIA RTX PRO Blackwell" for the last two.
"""


def peak_flops(name: str) -> float | None:
    """The peak of a device by its whole name; None for one that is not in the table (a part of a device is not)."""
    return next((peak for pattern, peak in PEAK_FLOPS.items() if re.fullmatch(pattern, name)), None)


def machine(role: str, device: torch.device, target: Target, drafter: Drafter) -> dict[str, Any]:
    """A rank's device and what its models multiply with.

    Returns:
        role, device (its name), peak_flops (None if unknown), target_weights (of the backbone; None for a mixture of
        experts, of which a token meets a part), context_weights (of the drafter, that every token of the context meets),
        block_weights (that every place of a block meets), head_weights (that every supervised slot meets).
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    experts = any("expert" in path for path, _ in target.backbone.named_parameters())
    keys = sum(
        num_weights(each) for path, each in drafter.named_modules() if path.endswith(("k_proj", "v_proj"))
    )
    fused = num_weights(drafter.fc)
    return {
        "role": role,
        "device": name,
        "peak_flops": peak_flops(name),
        "target_weights": None if experts else num_weights(target.backbone),
        "context_weights": fused + keys,
        "block_weights": num_weights(drafter) - fused,
        "head_weights": target.head.weight_VH.numel(),
    }


def num_weights(module: nn.Module) -> int:
    """Weights of the matrices that states are multiplied with; an embedding is looked up, norms and biases hardly count."""
    looked_up = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    return sum(each.numel() for each in module.parameters() if each.ndim == 2 and id(each) not in looked_up)
