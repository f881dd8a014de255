"""A server that speaks the OpenAI protocol, on this machine."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


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
        text = state.answer(body["messages"])
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
        # a client that was killed
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)


@pytest.fixture
def http() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.lock, server.bodies, server.keys, server.faults = threading.Lock(), [], set(), []
    server.flying = server.most = 0
    server.answer = lambda messages: messages[-1]["content"].upper()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
