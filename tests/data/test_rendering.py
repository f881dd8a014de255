"""Masks token by token, for the shapes of templates that makers publish, with and without generation tags."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dflash.data.dialects import BadRow
from dflash.data.rendering import NoPrefixError, Rendering

CONVERSATION = [
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "first answer"},
    {"role": "user", "content": "second question"},
    {"role": "assistant", "content": "second answer"},
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI4 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
GPT_OSS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
# the template inserts an empty thinking block into the prompt for generation, which the model does not write
QWEN3 = (
    "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}"
    "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' + m.content + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
# earlier turns lose what stands before </think>
DEEPSEEK_R1 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% else %}"
    "{{ '<｜Assistant｜>' + (m.content.split('</think>')[-1] if not loop.last else m.content) + '<｜end｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)
PLAIN = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "phi4": PHI4,
    "gpt_oss": GPT_OSS,
}
ENDS = {"chatml": "<|im_end|>\n", "llama3": "<|eot_id|>", "mistral": "</s>", "gemma": "<end_of_turn>\n", "phi4": "<|im_end|>", "gpt_oss": "<|end|>"}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    words.train_from_iterator([CHATML, LLAMA3, "first second question answer"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")


def supervised_text(rendering: Rendering, messages: list[dict[str, Any]], is_cut: bool = False) -> list[str]:
    """What the mask marks, run by run, found from the tokens alone."""
    ids, mask = rendering.tokens(*rendering.render(messages, is_cut))
    runs: list[list[int]] = []
    for place, (token, marked) in enumerate(zip(ids.tolist(), mask.tolist(), strict=True)):
        if marked:
            if not place or not mask[place - 1]:
                runs.append([])
            runs[-1].append(token)
    return [rendering.tokenizer.decode(run) for run in runs]


@pytest.mark.parametrize("name", PLAIN)
def test_the_mask_is_the_answers_and_their_ends(name: str, tokenizer: Any) -> None:
    rendering = Rendering(tokenizer, PLAIN[name], {}, "all")
    lead = {"mistral": " ", "gpt_oss": "<|channel|>final<|message|>"}.get(name, "")
    wanted = [f"{lead}{answer} answer{ENDS[name]}" for answer in ("first", "second")]
    assert supervised_text(rendering, CONVERSATION) == wanted
    assert supervised_text(Rendering(tokenizer, PLAIN[name], {}, "last"), CONVERSATION) == wanted[1:]
    # an answer that was cut off has no end of its own
    cut = [wanted[0], f"{lead}second answer"]
    assert supervised_text(rendering, CONVERSATION, is_cut=True) == cut


def test_generation_tags_are_the_mask(tokenizer: Any) -> None:
    tagged = CHATML.replace(
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}",
        "{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}",
    )
    assert supervised_text(Rendering(tokenizer, tagged, {}, "all"), CONVERSATION) == [
        "first answer<|im_end|>",
        "second answer<|im_end|>",
    ]
    last = Rendering(tokenizer, tagged, {}, "last")
    assert supervised_text(last, CONVERSATION) == ["second answer<|im_end|>"]
    assert supervised_text(last, CONVERSATION, is_cut=True) == ["second answer"]
    assert supervised_text(last, [*CONVERSATION, CONVERSATION[0]], is_cut=True) == ["second answer<|im_end|>"]


def test_a_thinking_block_that_the_template_inserts_is_not_supervised(tokenizer: Any) -> None:
    rendering = Rendering(tokenizer, QWEN3, {"enable_thinking": False}, "last")
    assert supervised_text(rendering, CONVERSATION) == ["second answer<|im_end|>\n"]
    assert supervised_text(rendering, CONVERSATION, is_cut=True) == ["second answer"]


def test_a_template_that_rewrites_earlier_turns_stops_with_the_difference(tokenizer: Any) -> None:
    thinking = [
        {**turn, "content": "why</think>" + turn["content"]} if turn["role"] == "assistant" else turn
        for turn in CONVERSATION
    ]
    with pytest.raises(NoPrefixError, match=r"renders turn 1 differently .* 'why</think>first|why</think>"):
        Rendering(tokenizer, DEEPSEEK_R1, {}, "all").render(thinking)
    # the last turn alone is fine
    assert supervised_text(Rendering(tokenizer, DEEPSEEK_R1, {}, "last"), thinking) == [
        "why</think>second answer<｜end｜>"
    ]


@pytest.mark.parametrize(
    ("template", "messages", "said"),
    [
        (GEMMA, [{"role": "system", "content": "s"}, *CONVERSATION], "System role not supported"),
        (MISTRAL, CONVERSATION[1:], "roles must alternate"),
    ],
)
def test_what_a_template_refuses_is_a_bad_row(
    template: str, messages: list[dict[str, Any]], said: str, tokenizer: Any
) -> None:
    with pytest.raises(BadRow, match=said):
        Rendering(tokenizer, template, {}, "all").render(messages)


def test_a_tokenizer_without_a_template_says_what_to_do(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match=r"has no chat template; give one with data\.chat_template"):
        Rendering(tokenizer, None, {}, "all").render(CONVERSATION)
