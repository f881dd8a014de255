"""The target answers in this process, turn by turn."""

from pathlib import Path
from typing import Any

from dflash.config.root import Config
from dflash.data.conversations import Conversation
from dflash.data.rounds import Prompt, rewrite
from dflash.evaluation.responses import InProcess


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def settings(**changes: Any) -> dict[str, Any]:
    raw = {
        "data": {"max_length": 64, **changes},
        "regeneration": {"max_new_tokens": 12, "batch_size": 2},
    }
    return Config.model_validate(raw).model_dump(mode="json")


def test_each_answer_is_that_to_the_conversation_so_far(tmp_path: Path) -> None:
    conversations = [
        Conversation([[user("def add(a, b):")], [user("def f(x):")]], 0, "two"),
        Conversation([[user("def negate(value):")]], 0, "one"),
        Conversation([[user("word " * 200)]], 0, "too long"),
    ]
    target = InProcess(settings(), "cpu")
    made = rewrite(conversations, target.respond, tmp_path / "done")
    assert [len(each.answers) for each in made][1:] == [1, 0]
    two = made[0].messages()
    for place in range(1, len(two), 2):
        ((_, answer),) = target.respond([Prompt(two[:place], "alone")])
        assert answer.text == two[place]["content"]
        assert answer.is_cut == (place == len(two) - 1 and made[0].answers[-1].is_cut)
    # all is known: nothing is asked
    again = rewrite(conversations[:2], lambda prompts: iter(()), tmp_path / "done")
    assert [each.row() for each in again] == [each.row() for each in made[:2]]


def test_a_prompt_that_the_template_refuses_is_left_out(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    target = InProcess(settings(chat_template=str(template)), "cpu")
    asked = [Prompt([{"role": "system", "content": "x"}, user("y")], "refused"), Prompt([user("y")], "fine")]
    assert [prompt.name for prompt, _ in target.respond(asked)] == ["fine"]
