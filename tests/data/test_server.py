"""Regeneration against a real HTTP server: bounded, retried, resumed; the key stays in one header."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dflash.data.conversations import Prompt
from dflash.data.server import Server, respond_to_all

PROMPTS = [
    Prompt([{"role": "user", "content": f"question {number}"}], 0, f"name{number}") for number in range(12)
]


class Handler(BaseHTTPRequestHandler):
    """Answers like vLLM: echoes the prompt; the server object holds faults and counts."""

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "demo"}]})

    def do_POST(self) -> None:
        state: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with state.lock:
            state.bodies.append(body)
            state.keys.add(self.headers.get("Authorization"))
            state.flying += 1
            state.most = max(state.most, state.flying)
            fault = state.faults.pop(0) if state.faults else 200
        time.sleep(0.01)
        with state.lock:
            state.flying -= 1
        text = body["messages"][-1]["content"].upper()
        self._send(
            fault,
            {
                "choices": [
                    {
                        "message": {"content": text},
                        "finish_reason": "length" if text.endswith("3") else "stop",
                    }
                ]
            },
        )

    def _send(self, status: int, content: dict[str, Any]) -> None:
        raw = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@pytest.fixture
def http() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.lock, server.bodies, server.keys, server.faults = threading.Lock(), [], set(), []
    server.flying = server.most = 0
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


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


def test_every_prompt_is_answered_once_within_the_bound(http: Any, tmp_path: Path) -> None:
    got = {
        prompt.name: (text, cut)
        for prompt, text, cut in respond_to_all(client(http), PROMPTS, tmp_path / "done")
    }
    assert got == {
        prompt.name: (prompt.messages[0]["content"].upper(), prompt.name.endswith("3")) for prompt in PROMPTS
    }
    assert len(http.bodies) == len(PROMPTS)
    assert http.most <= 3
    assert http.bodies[0]["model"] == "demo" and http.bodies[0]["max_tokens"] == 7


def test_a_stop_half_way_loses_nothing_and_asks_nothing_twice(http: Any, tmp_path: Path) -> None:
    stream = respond_to_all(client(http), PROMPTS, tmp_path / "done")
    for _ in range(5):
        next(stream)
    stream.close()
    # a kill in the middle of a line
    with (tmp_path / "done").open("a") as file:
        file.write('{"name": "na')
    kept = len((tmp_path / "done").read_text().splitlines()) - 1
    asked = len(http.bodies)
    got = [prompt.name for prompt, _, _ in respond_to_all(client(http), PROMPTS, tmp_path / "done")]
    assert sorted(got) == sorted(prompt.name for prompt in PROMPTS)
    assert len(http.bodies) - asked == len(PROMPTS) - kept


def test_passing_failures_are_retried_and_lasting_ones_named(http: Any, tmp_path: Path) -> None:
    http.faults = [503, 200]
    assert client(http).respond(PROMPTS[0], "demo")[0] == "QUESTION 0"
    http.faults = [400]
    with pytest.raises(
        ValueError, match=r"/chat/completions failed after 1 attempts: status 400; see regeneration\.url"
    ):
        client(http).respond(PROMPTS[0], "demo")
    http.faults = [500, 500]
    with pytest.raises(ValueError, match="failed after 2 attempts: status 500"):
        client(http, retries=1).respond(PROMPTS[0], "demo")


def test_the_key_comes_from_the_environment_and_stays_out_of_files(
    http: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = client(http, api_key_variable="DFLASH_TEST_KEY")
    with pytest.raises(
        ValueError, match=r"regeneration\.api_key_variable names DFLASH_TEST_KEY, which is not set"
    ):
        server.respond(PROMPTS[0], "demo")
    monkeypatch.setenv("DFLASH_TEST_KEY", "secret-value")
    list(respond_to_all(server, PROMPTS, tmp_path / "done"))
    assert http.keys == {"Bearer secret-value"}
    assert "secret-value" not in (tmp_path / "done").read_text() + repr(server)


def test_no_server_is_named(tmp_path: Path) -> None:
    class Nowhere:
        server_address = ("127.0.0.1", 9)

    with pytest.raises(
        ValueError, match=r"the server at http://127\.0\.0\.1:9/models failed after 1 attempts"
    ):
        client(Nowhere(), retries=0).first_model()
