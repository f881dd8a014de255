"""Answers of a real HTTP server: bounded, retried, refused; the key stays in one header."""

from typing import Any

import pytest

from dflash.data.rounds import Answer, Prompt
from dflash.data.server import RefusedError, Server, respond_to_all

PROMPTS = [
    Prompt([{"role": "user", "content": f"question {number}"}], f"name{number}") for number in range(12)
]


def client(http: Any, **changes: Any) -> Server:
    fields = {
        "url": f"http://127.0.0.1:{http.server_address[1]}",
        "model": None,
        "api_key_variable": None,
        "temperature": 0.0,
        "max_new_tokens": 7,
        "concurrency": 3,
        "retries": 2,
        "timeout_seconds": 20.0,
        "template_options": {},
    }
    return Server(**{**fields, **changes})


def test_every_prompt_is_answered_once_within_the_bound(http: Any) -> None:
    got = {prompt.name: answer for prompt, answer in respond_to_all(client(http), PROMPTS)}
    assert got == {
        prompt.name: Answer(prompt.messages[0]["content"].upper(), prompt.name.endswith("3"))
        for prompt in PROMPTS
    }
    assert len(http.bodies) == len(PROMPTS)
    assert http.most <= 3
    assert http.bodies[0]["model"] == "demo" and http.bodies[0]["max_tokens"] == 7


def test_a_refused_prompt_is_left_out_and_named_and_another_failure_stops(
    http: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    http.faults = [400, 422]
    got = [prompt.name for prompt, _ in respond_to_all(client(http), PROMPTS)]
    assert len(got) == len(set(got)) == len(PROMPTS) - 2
    assert "is left out: the server at " in capsys.readouterr().out
    http.faults = [401]
    with pytest.raises(ValueError, match="failed after 1 attempts: status 401"):
        list(respond_to_all(client(http), PROMPTS))


def test_passing_failures_are_retried_and_lasting_ones_named(http: Any) -> None:
    http.faults = [503, 200]
    assert client(http).respond(PROMPTS[0], "demo").text == "QUESTION 0"
    http.faults = [400]
    with pytest.raises(
        RefusedError, match=r"/chat/completions failed after 1 attempts: status 400; see regeneration\.url"
    ):
        client(http).respond(PROMPTS[0], "demo")
    http.faults = [500, 500]
    with pytest.raises(ValueError, match="failed after 2 attempts: status 500"):
        client(http, retries=1).respond(PROMPTS[0], "demo")


def test_the_key_comes_from_the_environment_and_stays_there(
    http: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = client(http, api_key_variable="DFLASH_TEST_KEY")
    with pytest.raises(
        ValueError, match=r"regeneration\.api_key_variable names DFLASH_TEST_KEY, which is not set"
    ):
        server.respond(PROMPTS[0], "demo")
    monkeypatch.setenv("DFLASH_TEST_KEY", "secret-value")
    got = list(respond_to_all(server, PROMPTS))
    assert http.keys == {"Bearer secret-value"}
    assert "secret-value" not in repr(got) + repr(server) + capfd.readouterr().out


def test_no_server_is_named() -> None:
    class Nowhere:
        server_address = ("127.0.0.1", 9)

    with pytest.raises(
        ValueError, match=r"the server at http://127\.0\.0\.1:9/models failed after 1 attempts"
    ):
        client(Nowhere(), retries=0).first_model()
