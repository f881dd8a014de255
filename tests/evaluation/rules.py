"""What both proofs of losslessness use: acceptance, and faulty rules that they must reject."""

from collections.abc import Callable, Sequence

import numpy as np

from dflash.evaluation.decoding import Decoded

Rule = Callable[[np.ndarray, np.ndarray], list[np.ndarray]]


def acceptance_length(decoded: Sequence[Decoded]) -> float:
    """Tokens committed per verifying forward, bonus included, pooled over prompts."""
    return sum(sum(each.steps) for each in decoded) / sum(len(each.steps) for each in decoded)


def too_tolerant(proposal_BK: np.ndarray, chosen_BL: np.ndarray) -> list[np.ndarray]:
    """Fault: a proposal next to the target's choice is good enough, and is committed."""
    counts = np.cumprod(abs(proposal_BK - chosen_BL[:, :-1]) <= 1, axis=1).sum(axis=1)
    return [
        np.append(proposed[:count], chosen[count])
        for proposed, chosen, count in zip(proposal_BK, chosen_BL, counts, strict=True)
    ]


def one_too_many(proposal_BK: np.ndarray, chosen_BL: np.ndarray) -> list[np.ndarray]:
    """Fault: the target's choice after the first rejected proposal is committed too."""
    counts = np.cumprod(proposal_BK == chosen_BL[:, :-1], axis=1).sum(axis=1)
    return [chosen[: count + 2] for chosen, count in zip(chosen_BL, counts, strict=True)]
