"""A headless Chromium that opens a page and tells what went wrong, over its debugging pipe (no port, no driver)."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TIMEOUT_SECONDS = 60.0


@dataclass
class Opened:
    """What a page did while it was open."""

    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    images: list[dict[str, Any]] = field(default_factory=list)
    overflow: float = 0.0
    background: str = ""


class Browser:
    """One Chromium process; pages are opened one after another."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, *options],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._read)

    def open(
        self, page: Path, *, dark: bool, width: int, screenshot: Path | None = None, media: str = "screen"
    ) -> Opened:
        """Open a page and look at it."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", size)
        self._events.clear()
        self.call("Page.navigate", {"url": page.as_uri()})
        self._wait_for("Page.loadEventFired")
        opened = Opened(
            images=self.evaluate(
                "Promise.all([...document.images].map(i => i.decode().catch(() => 0).then(() => "
                "({alt: i.alt, width: i.naturalWidth, shown: i.getBoundingClientRect().width, theme: i.className}))))"
            ),
            overflow=self.evaluate("document.documentElement.scrollWidth - window.innerWidth"),
            background=self.evaluate("getComputedStyle(document.body).backgroundColor"),
        )
        for event in self._events:
            params = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                opened.requests.append(params["request"]["url"][:200])
            elif event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                opened.console.append(json.dumps(params)[:500])
        if screenshot is not None:
            picture = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
            screenshot.write_bytes(base64.b64decode(picture["data"]))
        return opened

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        options = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        return self.call("Runtime.evaluate", options)["result"]["value"]

    def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """One command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            if "method" in answer:
                self._events.append(answer)

    def _wait_for(self, method: str) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not any(event["method"] == method for event in self._events):
            self._events.append(self._next(deadline))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            got = os.read(self._read, 1 << 20)
            assert got, "the browser has ended"
            self._rest += got
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
