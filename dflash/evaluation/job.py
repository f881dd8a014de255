"""The evaluation stage: load, decode, judge, write."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn

from dflash.data.shards import Shards
from dflash.data.tokenizer import load_tokenizer
from dflash.evaluation.decoding import BlockDrafter, Limits
from dflash.evaluation.divergence import BFLOAT16_TOLERANCE, FLOAT32_TOLERANCE, Divergence, divergences
from dflash.evaluation.drafters import DFlashDrafter, PromptLookup
from dflash.evaluation.heldout import heldout_prompts
from dflash.evaluation.measure import (
    Measured,
    Prompts,
    acceptance_rows,
    decode_all,
    decode_rows,
    position_rows,
    speed_rows,
)
from dflash.evaluation.verifier import TargetVerifier
from dflash.model.device import device_of
from dflash.model.drafter import Drafter
from dflash.model.drafter_config import check_fit
from dflash.model.drafter_files import load_drafter
from dflash.model.target import Loading, Target, load_target

TRAINED = "dflash"


@dataclass(frozen=True)
class Job:
    """What is evaluated, in plain values; see the config's `evaluation`."""

    target: str
    loading: Mapping[str, Any]
    drafter_folder: Path
    device: str
    untrained_seed: int
    num_prompts: int
    max_new_tokens: int
    temperatures: tuple[float, ...]
    batch_size: int
    baselines: tuple[str, ...]
    seed: int


def run_job(job: Job, shards: Mapping[str, Shards], folder: Path) -> None:
    """Evaluate and write the tables of `measure` into a folder.

    Raises:
        ValueError: a greedy text differs from plain greedy decoding where rounding does not explain it, or the drafter
            does not fit the target.
    """
    device = device_of(job.device)
    target = load_target(job.target, Loading(**job.loading), device)
    config, _, weights = load_drafter(job.drafter_folder)
    check_fit(config, target.facts)
    limit = target.facts.max_position_embeddings - job.max_new_tokens - config.block_size
    prompts = heldout_prompts(shards, job.num_prompts, limit)
    drafters = _drafters(job, target, config, weights)
    stops = _stop_tokens(target)

    def limits(temperature: float) -> Limits:
        return Limits(job.max_new_tokens, stops, temperature, job.seed)

    verifier = TargetVerifier(target.model, target.layers, config.taps)
    measured = decode_all(verifier, drafters, prompts, job.temperatures, limits, job.batch_size)
    differing = _judged(job, target, measured, prompts)
    tokenizer = load_tokenizer(job.target)
    block_sizes = {name: each.block_size for name, each in drafters.items()}
    _write(folder, job, measured, prompts, block_sizes, differing, tokenizer.decode)
    errors = {name: [each for each in found if each.is_error] for name, found in differing.items()}
    for name, found in errors.items():
        if found:
            raise ValueError(
                f"{len(found)} greedy texts with the drafter {name!r} differ from plain greedy decoding beyond rounding; the first: "
                f"prompt {found[0].prompt}, token {found[0].place}, where the two best logits lie {found[0].gap:.4f} apart. "
                "Speculation must not change the text; please report this"
            )


def _drafters(
    job: Job, target: Target, config: Any, weights: Mapping[str, torch.Tensor]
) -> dict[str, BlockDrafter]:
    """The trained drafter, and the baselines, in the order of the table."""
    dtype = target.embedding_VH.dtype
    trained = Drafter(config)
    trained.load_state_dict(dict(weights))
    found: dict[str, BlockDrafter] = {TRAINED: DFlashDrafter(_frozen(trained, dtype, target), target)}
    if "untrained" in job.baselines:
        untrained = Drafter(config)
        untrained.initialize(job.untrained_seed, target.head.weight_VH)
        found["untrained"] = DFlashDrafter(_frozen(untrained, dtype, target), target)
    if "prompt_lookup" in job.baselines:
        found["prompt_lookup"] = PromptLookup(config.block_size, target.device)
    return found


def _frozen(drafter: Drafter, dtype: torch.dtype, target: Target) -> Drafter:
    module: nn.Module = drafter.eval().requires_grad_(False).to(target.device, dtype)
    assert isinstance(module, Drafter)
    return module


def _stop_tokens(target: Target) -> frozenset[int]:
    """The tokens that end a text by the model's own generation settings."""
    configured = getattr(target.model.generation_config, "eos_token_id", None)
    tokens = target.facts.eos_token_id if configured is None else configured
    if tokens is None:
        return frozenset()
    return frozenset(tokens if isinstance(tokens, list) else [tokens])


def _judged(job: Job, target: Target, measured: Measured, prompts: Prompts) -> dict[str, list[Divergence]]:
    """Divergences of greedy texts, by drafter."""
    if 0.0 not in measured.plain:
        return {}
    plain = [each.tokens for each in measured.plain[0.0].decoded]
    texts = {
        name: [each.tokens for each in timed.decoded]
        for (name, temperature), timed in measured.speculative.items()
        if temperature == 0
    }
    if all(each == plain for each in texts.values()):
        return {name: [] for name in texts}
    exact = target.embedding_VH.dtype == torch.float32
    loading = Loading(**{**job.loading, "dtype": "float32"})
    model = target.model if exact else load_target(job.target, loading, target.device).model
    tolerance = FLOAT32_TOLERANCE if exact else BFLOAT16_TOLERANCE
    return {name: divergences(model, prompts.tokens, plain, each, tolerance) for name, each in texts.items()}


def _write(
    folder: Path,
    job: Job,
    measured: Measured,
    prompts: Prompts,
    block_sizes: Mapping[str, int],
    differing: Mapping[str, list[Divergence]],
    to_text: Any,
) -> None:
    acceptance = acceptance_rows(measured, prompts, job.seed)
    pl.DataFrame(acceptance).write_parquet(folder / "acceptance.parquet")
    pl.DataFrame(position_rows(measured, prompts, block_sizes)).write_parquet(folder / "positions.parquet")
    shown = min(job.temperatures)
    decodes = decode_rows(
        measured.plain[shown].decoded, measured.speculative[TRAINED, shown].decoded, prompts, to_text
    )
    with (folder / "decodes.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in decodes)
    summary = {
        "num_prompts": len(prompts.tokens),
        "max_new_tokens": job.max_new_tokens,
        "dtype": job.loading["dtype"],
        "acceptance": acceptance,
        "divergences": {name: [asdict(each) for each in found] for name, found in differing.items()},
        "identical": {name: len(prompts.tokens) - len(found) for name, found in differing.items()},
    }
    (folder / "evaluation.json").write_text(json.dumps(summary, indent=1) + "\n")
    (folder / "measured").mkdir(exist_ok=True)
    pl.DataFrame(speed_rows(measured)).write_parquet(folder / "measured" / "speed.parquet")
