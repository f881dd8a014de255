"""Lossless speculative decoding of a batch of prompts, and plain decoding beside it.

One verifying forward, for every row at once:

1. the drafter proposes L - 1 tokens after the last committed one;
2. the target runs on [last committed, proposal] and chooses its own token after each of them;
3. the leading proposals that equal the target's choices are committed, and one more choice of the target (the bonus).

Every committed token is the target's own choice given what stands before it, so the text is that of plain decoding:
exactly so with greedy choices and, because the numbers that sample are keyed by position, also when sampled.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dflash.evaluation.sampling import choose, keyed_uniforms


class Verifier(Protocol):
    """A target that decodes: a cache whose rows advance at their own pace, logits and features."""

    device: torch.device

    def begin(self, num_rows: int, capacity: int) -> None:
        """Take memory for `num_rows` rows of at most `capacity` tokens."""

    def run(self, tokens_BS: Tensor, positions_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, S, V] and features [B, S, F] at the given positions, which enter the cache."""

    def keep_rows(self, rows_B: Tensor) -> None:
        """Drop every row that is not listed."""


class BlockDrafter(Protocol):
    """What proposes the tokens of a block."""

    block_size: int

    def begin(self, num_rows: int, capacity: int) -> None:
        """Take memory for `num_rows` rows of at most `capacity` tokens."""

    def observe(self, features_BSF: Tensor, positions_BS: Tensor) -> None:
        """Take in the features of positions; later calls overwrite earlier ones at the same positions."""

    def draft(self, texts: Sequence[np.ndarray]) -> Tensor:
        """Propose int64 [B, block_size - 1] tokens after each text (prompt included), whose last token has no features yet."""

    def keep_rows(self, rows_B: Tensor) -> None:
        """Drop every row that is not listed."""


@dataclass
class Decoded:
    """What was decoded for one prompt.

    Attributes:
        tokens: the text after the prompt, stop token included.
        steps: tokens that each verifying forward added to `tokens`; the first token is the prefill's.
    """

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Timed:
    """Decoded prompts, in the order given, and the seconds that it took."""

    decoded: list[Decoded]
    seconds: float


@dataclass(frozen=True)
class Limits:
    """When a text ends, and how its tokens are chosen."""

    max_new_tokens: int
    stop_tokens: frozenset[int]
    temperature: float
    seed: int


def decode(
    target: Verifier,
    drafter: BlockDrafter | None,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    batch_size: int,
) -> Timed:
    """Decode prompts, with a drafter or plainly.

    Args:
        target: the frozen target.
        drafter: what proposes blocks; None decodes plainly, one token a forward.
        prompts: token ids, at least one each.
        limits: when a text ends and how its tokens are chosen.
        batch_size: prompts decoded at once; prompts of similar length go together.

    Raises:
        ValueError: a prompt without a token.
    """
    empty = [number for number, prompt in enumerate(prompts) if not prompt]
    if empty:
        raise ValueError(f"prompt {empty[0]} has no token; every prompt needs at least one")
    decoded = [Decoded() for _ in prompts]
    began = time.perf_counter()
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        _decode_batch(target, drafter, numbers, prompts, decoded, limits)
    return Timed(decoded, time.perf_counter() - began)


@torch.inference_mode()
def _decode_batch(
    target: Verifier,
    drafter: BlockDrafter | None,
    numbers: list[int],
    prompts: Sequence[Sequence[int]],
    decoded: list[Decoded],
    limits: Limits,
) -> None:
    """Decode the prompts of these numbers together; rows that end leave the batch."""
    block_size = 1 if drafter is None else drafter.block_size
    rows = list(numbers)
    texts = [np.array(prompts[number], dtype=np.int64) for number in rows]
    capacity = max(map(len, texts)) + limits.max_new_tokens + block_size
    target.begin(len(rows), capacity)
    if drafter is not None:
        drafter.begin(len(rows), capacity)
    first_B = _prefill(target, drafter, rows, texts, limits)
    committed = [row[:1] for row in first_B[:, None]]
    prefill = True
    while True:
        rows, texts = _commit(target, drafter, rows, texts, committed, decoded, limits, prefill)
        prefill = False
        if not rows:
            return
        committed = _verify(target, drafter, rows, texts, limits)


def _prefill(
    target: Verifier, drafter: BlockDrafter | None, rows: list[int], texts: list[np.ndarray], limits: Limits
) -> np.ndarray:
    """Run the prompts and choose each one's first token: int64 [B]."""
    lengths = np.array([len(text) for text in texts])
    # [rows, longest prompt]: right padding; a padded place is overwritten before any query can see it
    padded = np.zeros((len(texts), lengths.max()), dtype=np.int64)
    for row, text in enumerate(texts):
        padded[row, : len(text)] = text
    positions_BS = torch.arange(padded.shape[1], device=target.device).expand(len(texts), -1)
    logits_BSV, features_BSF = target.run(torch.from_numpy(padded).to(target.device), positions_BS)
    if drafter is not None:
        drafter.observe(features_BSF, positions_BS)
    last_B11 = torch.from_numpy(lengths - 1).to(target.device)[:, None, None]
    last_logits_B1V = logits_BSV.take_along_dim(last_B11, dim=1)
    uniforms = keyed_uniforms(limits.seed, np.array(rows), lengths[:, None])
    return choose(last_logits_B1V, limits.temperature, uniforms)[:, 0].cpu().numpy()


def _verify(
    target: Verifier, drafter: BlockDrafter | None, rows: list[int], texts: list[np.ndarray], limits: Limits
) -> list[np.ndarray]:
    """One verifying forward: the tokens that each row commits."""
    last_B1 = torch.tensor([[text[-1]] for text in texts], device=target.device)
    proposal = last_B1[:, :0] if drafter is None else drafter.draft(texts)
    block_BL = torch.cat([last_B1, proposal], dim=1)
    # [rows, slots]: the block begins at the last committed token, whose features are not known yet
    places = np.array([len(text) - 1 for text in texts])[:, None] + np.arange(block_BL.shape[1])
    positions_BL = torch.from_numpy(places).to(target.device)
    logits_BLV, features_BLF = target.run(block_BL, positions_BL)
    if drafter is not None:
        drafter.observe(features_BLF, positions_BL)
    chosen_BL = choose(
        logits_BLV, limits.temperature, keyed_uniforms(limits.seed, np.array(rows), places + 1)
    )
    return accept(proposal.cpu().numpy(), chosen_BL.cpu().numpy())


def accept(proposal_BK: np.ndarray, chosen_BL: np.ndarray) -> list[np.ndarray]:
    """The rule: what each row commits of its proposal and the target's choices, int64, at least one token a row.

    Args:
        proposal_BK: K = L - 1 proposed tokens.
        chosen_BL: the target's own choice after the last committed token and after each proposed one.
    """
    counts = np.cumprod(proposal_BK == chosen_BL[:, :-1], axis=1).sum(axis=1)
    return [row[: count + 1] for row, count in zip(chosen_BL, counts, strict=True)]


def _commit(
    target: Verifier,
    drafter: BlockDrafter | None,
    rows: list[int],
    texts: list[np.ndarray],
    committed: list[np.ndarray],
    decoded: list[Decoded],
    limits: Limits,
    prefill: bool,
) -> tuple[list[int], list[np.ndarray]]:
    """Add what was committed to the texts; rows that ended leave the batch."""
    staying = []
    for place, (number, tokens) in enumerate(zip(rows, committed, strict=True)):
        record = decoded[number]
        room = limits.max_new_tokens - len(record.tokens)
        stops = np.flatnonzero(np.isin(tokens, list(limits.stop_tokens)))
        kept = tokens[: min(room, int(stops[0]) + 1 if len(stops) else len(tokens))]
        record.tokens.extend(kept.tolist())
        if not prefill:
            # what was committed beyond the end still belongs to the forward; acceptance.counted weighs it
            record.steps.append(len(tokens))
        texts[place] = np.concatenate([texts[place], kept])
        ended = len(record.tokens) >= limits.max_new_tokens or (len(stops) and len(kept) == int(stops[0]) + 1)
        if not ended:
            staying.append(place)
    if len(staying) < len(rows):
        kept_rows = torch.tensor(staying, dtype=torch.long, device=target.device)
        target.keep_rows(kept_rows)
        if drafter is not None:
            drafter.keep_rows(kept_rows)
    return [rows[place] for place in staying], [texts[place] for place in staying]
