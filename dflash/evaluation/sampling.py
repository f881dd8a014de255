"""Choosing the target's tokens: greedy, or sampled with one keyed uniform number a position.

The number that samples a position depends on (seed, prompt, position) alone, not on the batch, the block size or the
drafter. Since speculation commits nothing but samples of the target, the sampled text is then the same, token by
token, as that of plain sampling with the same seed: losslessness can be checked at every temperature, not only at 0.
"""

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def keyed_uniforms(seed: int, prompts_B: np.ndarray, positions_BS: np.ndarray) -> np.ndarray:
    """One number in [0, 1) for each (seed, prompt, position): float64 [B, S].

    Three rounds of splitmix64's finalizer (Steele et al., 2014), one for each part of the key.
    """
    with np.errstate(over="ignore"):
        state = _mixed(np.uint64(seed % (1 << 64)) + _GOLDEN)
        state_B = _mixed(state ^ (prompts_B.astype(np.uint64) + _GOLDEN))
        state_BS = _mixed(state_B[:, None] ^ (positions_BS.astype(np.uint64) + _GOLDEN))
    return (state_BS >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose(logits_BSV: Tensor, temperature: float, uniforms_BS: np.ndarray) -> Tensor:
    """The target's token at each position: int64 [B, S].

    Args:
        logits_BSV: the target's logits, any float type.
        temperature: 0 takes the most likely token (the first of equals); else samples from softmax(logits / temperature).
        uniforms_BS: the numbers that sample, by inversion of the cumulative distribution in float64.
    """
    if temperature == 0:
        return logits_BSV.argmax(dim=-1)
    probabilities = (logits_BSV.double() / temperature).softmax(dim=-1).cumsum(dim=-1)
    drawn_BS1 = torch.from_numpy(uniforms_BS).to(logits_BSV.device)[..., None] * probabilities[..., -1:]
    return torch.searchsorted(probabilities, drawn_BS1, right=True)[..., 0].clamp_(
        max=logits_BSV.shape[-1] - 1
    )


def _mixed(value: np.ndarray | np.uint64) -> np.ndarray:
    state: np.ndarray = np.asarray(value, dtype=np.uint64)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))
