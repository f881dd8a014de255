"""From messages to tokens and a loss mask, by the target's own chat template.

Where the template marks what the model generates (`{% generation %}`), its marks are the mask. Elsewhere the mask comes
from rendering boundaries: the text up to a turn with the prompt for generation, and the text with the turn, are rendered
apart, and what the second adds is supervised. Each must be a prefix of the whole; where it is not (a template that
rewrites earlier turns), the source stops with the first difference, because every mask would be wrong somewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
from jinja2 import TemplateError

from dflash.data.dialects import BadRow


class NoPrefixError(ValueError):
    """The template does not render a turn's boundary as a prefix of the whole conversation."""


@dataclass(frozen=True)
class Rendering:
    """How conversations are rendered.

    Attributes:
        tokenizer: the target's fast tokenizer. template: Jinja text that replaces the tokenizer's, or None.
        options: variables of the template. supervise: all assistant turns, or the last one.
    """

    tokenizer: Any
    template: str | None
    options: Mapping[str, Any]
    supervise: Literal["all", "last"]

    @property
    def is_marked(self) -> bool:
        """Whether the template marks what is generated."""
        text = self.template or self.tokenizer.chat_template
        if not text:
            raise ValueError(
                "the target's tokenizer has no chat template; give one with data.chat_template, or use the dialect `text`"
            )
        return "{% generation" in text or "{%- generation" in text

    @cached_property
    def num_tokens(self) -> int:
        """Token ids are below this number."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @cached_property
    def _backend(self) -> Any:
        """The tokenizer without the layers above it, which take longer than short texts do; texts stay whole."""
        backend = self.tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        return backend

    def render(
        self, messages: Sequence[Mapping[str, Any]], is_cut: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """The whole text and the supervised spans of characters.

        Args:
            is_cut: the last message is an answer that was stopped early, so the end that the template gives it is not supervised.

        Raises:
            BadRow: the template refuses the conversation. NoPrefixError: see above.
        """
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if self.supervise == "last":
            turns = turns[-1:]
        whole, spans = self._marked(messages, turns) if self.is_marked else self._bounded(messages, turns)
        if is_cut and turns and turns[-1] == len(messages) - 1:
            end = self._end_of_content(messages, whole)
            spans = [(start, min(stop, end)) for start, stop in spans]
        return whole, spans

    def _bounded(
        self, messages: Sequence[Mapping[str, Any]], turns: list[int]
    ) -> tuple[str, list[tuple[int, int]]]:
        """By the renderings up to each turn and with it."""
        whole = self._text(messages, False)
        spans = []
        for turn in turns:
            before, after = self._text(messages[:turn], True), self._text(messages[: turn + 1], False)
            for boundary in (before, after):
                if not whole.startswith(boundary):
                    raise NoPrefixError(_difference(whole, boundary, turn))
            spans.append((len(before), len(after)))
        return whole, spans

    def tokens(self, text: str, spans: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int32 and mask uint8 of a rendered text. A token is supervised if it begins inside a span."""
        encoded = self._backend.encode(text, add_special_tokens=False)
        ids = np.array(encoded.ids, dtype=np.int32)
        offsets = np.fromiter(chain.from_iterable(encoded.offsets), np.int64, 2 * len(ids)).reshape(-1, 2)
        mask = np.zeros(len(ids), dtype=np.uint8)
        for start, end in spans:
            mask |= (
                (offsets[:, 0] >= start) & (offsets[:, 0] < end) & (offsets[:, 1] > offsets[:, 0])
            ).astype(np.uint8)
        return ids, mask

    def _end_of_content(self, messages: Sequence[Mapping[str, Any]], whole: str) -> int:
        """Where the last message's content ends: the rendering that could go on there is a prefix of the whole."""
        try:
            begun = self._text(messages, False, continue_final_message=True)
        except ValueError as error:
            raise BadRow(f"the chat template does not render an answer that was cut off: {error}") from None
        if not whole.startswith(begun):
            raise BadRow("the chat template renders an answer that was cut off differently from a whole one")
        return len(begun)

    def _text(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, **options: Any
    ) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages),
                    chat_template=self.template,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **self.options,
                    **options,
                )
            )
        except (TemplateError, TypeError, KeyError, AttributeError) as error:
            raise BadRow(f"the chat template refuses the conversation: {error}") from None

    def _marked(
        self, messages: Sequence[Mapping[str, Any]], turns: list[int]
    ) -> tuple[str, list[tuple[int, int]]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered: Any = render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                chat_template=self.template or self.tokenizer.chat_template,
                return_assistant_tokens_mask=True,
                **{**self.tokenizer.special_tokens_map, **self.options},
            )
        except (TemplateError, TypeError, KeyError, AttributeError) as error:
            raise BadRow(f"the chat template refuses the conversation: {error}") from None
        (text,), (spans,) = rendered
        found = [(int(start), int(end)) for start, end in spans]
        return text, found[-1:] if self.supervise == "last" and turns else found


def _difference(whole: str, boundary: str, turn: int) -> str:
    place = next((at for at, (a, b) in enumerate(zip(whole, boundary, strict=False)) if a != b), len(whole))
    around = slice(max(0, place - 30), place + 30)
    return (
        f"the chat template renders turn {turn} differently alone and in the whole conversation, from character {place} on: "
        f"{boundary[around]!r} against {whole[around]!r}; give a template with generation tags (data.chat_template), template_options "
        "that keep earlier turns as they are, or set data.supervise: last"
    )
