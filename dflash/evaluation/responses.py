"""Responses of the target in this process: plain decoding of prompts in ragged batches."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash.data.conversations import Prompt
from dflash.data.tokenizer import load_tokenizer
from dflash.evaluation.decoding import Limits, decode
from dflash.evaluation.verifier import TargetVerifier
from dflash.model.device import device_of
from dflash.model.target import Loading, load_target

PROMPTS_AT_ONCE = 8
"""Batches of prompts of similar length that are decoded between two lines of progress."""


def respond_in_process(
    settings: Mapping[str, Any], prompts: Sequence[Prompt], wanted_device: str = "auto"
) -> Iterator[tuple[Prompt, str, bool]]:
    """Every prompt with its response, and whether that met the limit of tokens. Prompts that leave no room are left out.

    Args:
        settings: `regeneration`, `target`, `target_loading` and `data` of the config, as plain values.
        prompts: what to answer.
        wanted_device: the config's `runtime.device`; `auto` is cuda where there is a GPU.
    """
    regeneration, data = settings["regeneration"], settings["data"]
    device = device_of(wanted_device)
    target = load_target(settings["target"], Loading(**settings["target_loading"]), device)
    loading = settings["target_loading"]
    tokenizer = load_tokenizer(settings["target"], loading["revision"], loading["trust_remote_code"])
    template = data["chat_template"]
    options = {
        **data["template_options"],
        "chat_template": Path(template).read_text("utf-8") if template else None,
    }
    tokens = [_prompt_tokens(tokenizer, prompt, options) for prompt in prompts]
    room = data["max_length"] - 1
    fitting = sorted((len(ids), number) for number, ids in enumerate(tokens) if len(ids) <= room)
    configured = target.model.generation_config.eos_token_id
    stops = configured if isinstance(configured, list) else [configured]
    limits = Limits(
        regeneration["max_new_tokens"],
        frozenset(t for t in stops if t is not None),
        regeneration["temperature"],
        0,
    )
    verifier = TargetVerifier(target.model, target.layers, ())
    size = regeneration["batch_size"] * PROMPTS_AT_ONCE
    made = 0
    for start in range(0, len(fitting), size):
        numbers = [number for _, number in fitting[start : start + size]]
        timed = decode(
            verifier, None, [tokens[number] for number in numbers], limits, regeneration["batch_size"]
        )
        made += sum(len(each.tokens) for each in timed.decoded)
        print(f"{start + len(numbers)}/{len(fitting)} responses, {made} tokens", flush=True)
        for number, each in zip(numbers, timed.decoded, strict=True):
            is_cut = each.tokens[-1] not in limits.stop_tokens
            yield prompts[number], tokenizer.decode(each.tokens, skip_special_tokens=True), is_cut


def _prompt_tokens(tokenizer: Any, prompt: Prompt, options: Mapping[str, Any]) -> list[int]:
    encoded = tokenizer.apply_chat_template(
        prompt.messages, add_generation_prompt=True, tokenize=True, return_dict=True, **options
    )
    return list(encoded["input_ids"])
