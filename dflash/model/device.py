"""Where tensors live, by the word of the config."""

import torch


def device_of(setting: str, local_rank: int = 0) -> torch.device:
    """The device that `runtime.device` means.

    Args:
        setting: "cpu", "cuda", or "auto": a GPU where there is one.
        local_rank: which of the machine's GPUs.
    """
    if setting == "cuda" or (setting == "auto" and torch.cuda.is_available()):
        return torch.device("cuda", local_rank)
    return torch.device("cpu")
