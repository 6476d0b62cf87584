"""A real browser without a window, over the pipe of its DevTools protocol: no network, no driver."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    "--js-flags=--no-opt",  # pages run for a second: compiling them better takes longer
)


_WIRE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts the protocol's pipes where the browser looks for them: descriptors 3 and 4."""


@dataclass(slots=True)
class Browser:
    """One page at a time."""

    requests: BinaryIO
    answers: BinaryIO
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0
    _rest: bytes = b""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its answer; events that arrive before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.requests.write(json.dumps(message).encode() + b"\0")
        self.requests.flush()
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self.answers.fileno(), 1 << 20)
            assert piece, "the browser left"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def run(self, expression: str) -> Any:
        """What an expression of JavaScript gives, awaited."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, page: Path, width: int, *, dark: bool = False) -> None:
        """Show a page at a width, and wait until its figures are drawn."""
        self.events.clear()
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        self.prefer(dark=dark)
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.run(
            "new Promise(done => { const look = () => document.documentElement?.dataset.ready === 'yes' ? done() : "
            "setTimeout(look, 20); look(); })"
        )

    def prefer(self, *, dark: bool) -> None:
        """Say which colours the user prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, code: int) -> None:
        """Press and let go of a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, file: Path, scale: float = 1.0) -> None:
        """The whole page as a picture, at a scale."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": scale}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Errors on the console and what was asked of the network since the page was opened."""
        told = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                told.append(str(params["exceptionDetails"]))
            if event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                told.append(str(params["args"]))
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                told.append(str(params["entry"]))
            if event.get("method") == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:")):
                    told.append(f"asked for {url}")
        return told


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, ended on leaving."""
    assert CHROMIUM
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    command = [CHROMIUM, *_ARGUMENTS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
    wired = [sys.executable, "-c", _WIRE, str(to_read), str(from_write), *command]
    started = subprocess.Popen(
        wired, pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(from_write)
    try:
        with os.fdopen(to_write, "wb") as requests, os.fdopen(from_read, "rb") as answers:
            found = Browser(requests, answers)
            target = found.call("Target.createTarget", url="about:blank")["targetId"]
            found.session = found.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
                found.call(f"{domain}.enable")
            yield found
    finally:
        started.kill()
        started.wait()
