"""Responses from an OpenAI-compatible server (vLLM, SGLang, llama.cpp).

The key for the server comes from the environment and is put in one request header; it stands in no file and no message.
"""

import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from dflash.data.rounds import Answer, Prompt

RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504})
REFUSING_STATUSES = frozenset({400, 413, 422})
"""What servers say to one prompt: too long, or refused by the chat template."""
LONGEST_PAUSE_SECONDS = 60.0
REFUSALS_SHOWN = 3


class RefusedError(ValueError):
    """The server does not take this prompt; others may be answered."""


@dataclass(frozen=True)
class Server:
    """Where and how to ask; plain values of the config's `regeneration`."""

    url: str
    model: str | None
    api_key_variable: str | None
    temperature: float
    max_new_tokens: int
    concurrency: int
    retries: int
    timeout_seconds: float
    template_options: Mapping[str, Any]

    def first_model(self) -> str:
        """The model to ask for: the configured one, else the first that the server lists.

        Raises:
            ValueError: the server can't be reached or lists none.
        """
        if self.model is not None:
            return self.model
        listed = self._ask("/models", None)["data"]
        if not listed:
            raise ValueError(f"the server at {self.url} lists no model; set regeneration.model")
        return str(listed[0]["id"])

    def respond(self, prompt: Prompt, model: str) -> Answer:
        """The response to a prompt.

        Raises:
            RefusedError: the server does not take the prompt.
            ValueError: the server refuses, or went on failing; names the address and the last failure.
        """
        body = {
            "model": model,
            "messages": prompt.messages,
            "temperature": self.temperature,
            "max_tokens": self.max_new_tokens,
        }
        if self.template_options:
            body["chat_template_kwargs"] = dict(self.template_options)
        choice = self._ask("/chat/completions", body)["choices"][0]
        text = str(choice["message"].get("content") or "")
        return Answer(text, choice.get("finish_reason") == "length")

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        last, kind = "", ValueError
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(min(LONGEST_PAUSE_SECONDS, 0.5 * 2**attempt) * (0.5 + random.random() / 2))
            try:
                with urllib.request.urlopen(
                    self._request(path, body), timeout=self.timeout_seconds
                ) as answer:
                    found: dict[str, Any] = json.load(answer)
                    return found
            except urllib.error.HTTPError as error:
                last = f"status {error.code}"
                if error.code in REFUSING_STATUSES:
                    kind = RefusedError
                if error.code not in RETRIED_STATUSES:
                    break
            except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError) as error:
                last = str(getattr(error, "reason", error))
        raise kind(
            f"the server at {self.url}{path} failed after {attempt + 1} attempts: {last}; see regeneration.url"
        )

    def _request(self, path: str, body: Mapping[str, Any] | None) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        if self.api_key_variable is not None:
            key = os.environ.get(self.api_key_variable)
            if not key:
                raise ValueError(
                    f"regeneration.api_key_variable names {self.api_key_variable}, which is not set"
                )
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.Request(self.url.rstrip("/") + path, data=data, headers=headers)


def respond_to_all(server: Server, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, Answer]]:
    """Every prompt with its response, as they come; at most `concurrency` requests are in flight.

    Prompts that the server refuses are left out; the first of them are printed.
    """
    model = server.first_model()
    refused = 0
    with ThreadPoolExecutor(server.concurrency) as pool:
        flying: dict[Future[Answer], Prompt] = {}
        rest = iter(prompts)
        try:
            while True:
                while len(flying) < server.concurrency and (prompt := next(rest, None)) is not None:
                    flying[pool.submit(server.respond, prompt, model)] = prompt
                if not flying:
                    return
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    prompt = flying.pop(future)
                    try:
                        answer = future.result()
                    except RefusedError as error:
                        refused += 1
                        if refused <= REFUSALS_SHOWN:
                            print(f"{prompt.name} is left out: {error}", flush=True)
                        continue
                    yield prompt, answer
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
