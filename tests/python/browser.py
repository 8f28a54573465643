"""Debian's Chromium, headless, by its DevTools protocol over a pipe: what a page does in a real browser."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60  # seconds


def chromium() -> str:
    """The browser; the test is skipped where there is none. tools/setup does not install it: it takes 400 MB."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    return found


class Browser:
    """One page at a time."""

    def __init__(self, to: int, back: int) -> None:
        self.to, self.back = to, back
        self.waiting = b""
        self.count = 0
        self.said: list[str] = []  # errors and warnings that the page wrote to the console, and what failed to load
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        number = self.count
        message = {"id": number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def message(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.back], [], [], max(end - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            part = os.read(self.back, 1 << 20)
            assert part, "Chromium has ended"
            self.waiting += part
        text, self.waiting = self.waiting.split(b"\0", 1)
        found = json.loads(text)
        method, parameters = found.get("method", ""), found.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed"):
            self.said.append(json.dumps(parameters)[:2000])
        if method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            self.said.append(f"asks for {parameters['request']['url']}")
        return found

    def open(self, page: Path, width: int, height: int = 900, scheme: str = "light") -> None:
        """Loads the page on a screen of this width. What it says meanwhile is in `said`."""
        self.said.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self.message().get("method") != "Page.loadEventFired":
            pass

    def as_printed(self) -> None:
        """The page from here on looks as on paper."""
        self.call("Emulation.setEmulatedMedia", media="print")

    def value(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, to: Path) -> None:
        """All of the page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        to.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, to: Path) -> None:
        found = self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        to.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    program = chromium()
    down, to = os.pipe()
    back, up = os.pipe()
    arguments = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-pipe",
    ]
    arguments += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={folder}"]

    def plug() -> None:  # Chromium reads from descriptor 3 and writes to 4
        first, second = os.dup(down), os.dup(up)
        os.dup2(first, 3)
        os.dup2(second, 4)

    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen([program, *arguments], close_fds=False, preexec_fn=plug, **silent)
    os.close(down)
    os.close(up)
    try:
        yield Browser(to, back)
    finally:
        running.terminate()
        running.wait(PATIENCE)
        os.close(to)
        os.close(back)
