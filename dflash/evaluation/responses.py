"""Responses of the target in this process: plain decoding of prompts in ragged batches."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from dflash.data.rounds import Answer, Prompt
from dflash.data.tokenizer import load_tokenizer
from dflash.evaluation.decoding import Limits, decode
from dflash.evaluation.verifier import TargetVerifier
from dflash.model.device import device_of
from dflash.model.target import Loading, load_target

PROMPTS_AT_ONCE = 8
"""Batches of prompts of similar length that are decoded between two lines of progress."""


class InProcess:
    """The target, loaded once, with the settings that it answers by.

    Args:
        settings: `regeneration`, `target`, `target_loading` and `data` of the config, as plain values.
        wanted_device: the config's `runtime.device`; `auto` is cuda where there is a GPU.
    """

    def __init__(self, settings: Mapping[str, Any], wanted_device: str = "auto") -> None:
        regeneration, data, loading = settings["regeneration"], settings["data"], settings["target_loading"]
        target = load_target(settings["target"], Loading(**loading), device_of(wanted_device))
        self.tokenizer = load_tokenizer(settings["target"], loading["revision"], loading["trust_remote_code"])
        template = data["chat_template"]
        self.options = {
            **data["template_options"],
            "chat_template": Path(template).read_text("utf-8") if template else None,
        }
        configured = target.model.generation_config.eos_token_id
        stops = configured if isinstance(configured, list) else [configured]
        self.limits = Limits(
            regeneration["max_new_tokens"],
            frozenset(t for t in stops if t is not None),
            regeneration["temperature"],
            0,
        )
        self.room = data["max_length"] - 1
        self.batch_size = regeneration["batch_size"]
        self.verifier = TargetVerifier(target.model, target.layers, ())

    def respond(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, Answer]]:
        """Every prompt with its response; those that leave no room or that the chat template refuses are left out."""
        tokens = [self._tokens(prompt) for prompt in prompts]
        fitting = sorted((len(ids), number) for number, ids in enumerate(tokens) if 0 < len(ids) <= self.room)
        if len(fitting) < len(prompts):
            print(
                f"{len(prompts) - len(fitting)} of {len(prompts)} prompts are left out: longer than data.max_length, "
                "or refused by the chat template",
                flush=True,
            )
        size = self.batch_size * PROMPTS_AT_ONCE
        made = 0
        for start in range(0, len(fitting), size):
            numbers = [number for _, number in fitting[start : start + size]]
            asked = [tokens[number] for number in numbers]
            timed = decode(self.verifier, None, asked, self.limits, self.batch_size)
            made += sum(len(each.tokens) for each in timed.decoded)
            print(f"{start + len(numbers)}/{len(fitting)} responses, {made} tokens", flush=True)
            for number, each in zip(numbers, timed.decoded, strict=True):
                is_cut = each.tokens[-1] not in self.limits.stop_tokens
                yield (
                    prompts[number],
                    Answer(self.tokenizer.decode(each.tokens, skip_special_tokens=True), is_cut),
                )

    def _tokens(self, prompt: Prompt) -> list[int]:
        """The rendered prompt; empty where the chat template refuses it."""
        try:
            encoded = self.tokenizer.apply_chat_template(
                prompt.messages, add_generation_prompt=True, tokenize=True, return_dict=True, **self.options
            )
        except (TemplateError, TypeError, KeyError, AttributeError):
            return []
        return list(encoded["input_ids"])
