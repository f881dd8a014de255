"""AdamW, or Muon for matrices with AdamW for the rest, over float32 weights.

Muon (Keller Jordan, 2024) is PyTorch's own; its steps are scaled to the size of AdamW's (`match_rms_adamw`,
arXiv:2502.16982), so that both share one learning rate and one weight decay.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class OptimizerSettings:
    """Plain values of the config's `training`. kind: `adamw` or `muon`."""

    kind: str
    weight_decay: float
    betas: tuple[float, float]
    clip_norm: float


class Optimizer:
    """Both optimizers behind one step, and their state as named tensors."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], settings: OptimizerSettings) -> None:
        self._named = dict(parameters)
        self._clip_norm = settings.clip_norm
        matrices = [each for each in self._named.values() if each.dim() == 2]
        others = [each for each in self._named.values() if each.dim() != 2]
        # Norm weights are not decayed.
        groups = [{"params": others, "weight_decay": 0.0}]
        self._parts: list[torch.optim.Optimizer] = []
        if settings.kind == "muon":
            self._parts.append(
                torch.optim.Muon(matrices, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw")
            )
        else:
            groups.append({"params": matrices, "weight_decay": settings.weight_decay})
        self._parts.append(torch.optim.AdamW(groups, betas=settings.betas))

    def step(self, learning_rate: float, gradient_norm: float) -> None:
        """Update the weights from their `.grad`, clipped to the largest norm.

        Args:
            gradient_norm: norm of all gradients together.
        """
        scale = self._clip_norm / gradient_norm if gradient_norm > self._clip_norm else 1.0
        if scale != 1.0:
            torch._foreach_mul_([each.grad for each in self._named.values() if each.grad is not None], scale)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = learning_rate
            part.step()

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on beside the weights, by `PARAMETER/ENTRY`."""
        return {
            f"{name}/{entry}": value
            for name, parameter in self._named.items()
            for part in self._parts
            for entry, value in part.state.get(parameter, {}).items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state that `state` gave.

        Raises:
            ValueError: an entry belongs to no weight of this drafter.
        """
        for key, value in state.items():
            name, _, entry = key.rpartition("/")
            if name not in self._named:
                raise ValueError(
                    f"the optimizer's saved state has {key!r}, but the drafter has no weight {name!r}"
                )
            parameter = self._named[name]
            for part in self._parts:
                if any(parameter is each for group in part.param_groups for each in group["params"]):
                    # AdamW counts its steps on the CPU.
                    part.state[parameter][entry] = (
                        value.clone() if entry == "step" else value.to(parameter.device).clone()
                    )
