"""A real browser, driven through its debugging pipe with nothing but the standard library.

    python tests/chromium.py REPORT.html [FOLDER]

looks at a page at the width of a desk and of a telephone, light and dark; leaves screenshots in FOLDER, prints what the
page complained about or tried to load, and exits 1 if that is anything.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = {"desk": 1280, "telephone": 390}
CUT = (
    "[...document.querySelectorAll('table')].filter(t => t.parentElement.scrollWidth > t.parentElement.clientWidth + 1)"
    ".map(t => t.parentElement.getAttribute('aria-label') ?? '')"
)
TROUBLE = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


@dataclass
class Seen:
    """What a page did while it was shown."""

    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    overflow: int = 0
    """Pixels by which the page, not a box in it, is wider than the window."""
    cut: list[str] = field(default_factory=list)
    """Tables that are wider than their box, so that a part of them is not seen."""
    screenshot: bytes = b""


class Chromium:
    """One browser and one page of it."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest, self._count = b"", 0
        self.events: list[dict[str, Any]] = []
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._send(method, parameters or {}, self._session)

    def wait_for(self, event: str) -> None:
        while not any(found["method"] == event for found in self.events):
            self._receive()

    def _send(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._answers, 1 << 20)
            if not more:
                raise RuntimeError("the browser has gone")
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def _evaluate(self, expression: str) -> Any:
        asked = {"expression": expression, "returnByValue": True}
        return self.call("Runtime.evaluate", asked)["result"]["value"]

    def look_at(self, page: Path, width: int, scheme: str) -> Seen:
        """Open a page at a width, in the light or the dark."""
        self.events.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", {"features": [feature]})
        self.call("Page.navigate", {"url": page.resolve().as_uri()})
        self.wait_for("Page.loadEventFired")
        seen = Seen(
            overflow=self._evaluate("document.documentElement.scrollWidth - window.innerWidth"), cut=self._evaluate(CUT)
        )
        taken = self.call("Page.captureScreenshot", {"captureBeyondViewport": True})
        seen.screenshot = base64.b64decode(taken["data"])
        for event in self.events:
            if event["method"] in TROUBLE:
                seen.complaints.append(json.dumps(event["params"]))
            if event["method"] == "Network.requestWillBeSent":
                seen.requests.append(event["params"]["request"]["url"])
        return seen


@contextmanager
def chromium() -> Iterator[Chromium]:
    """Start a browser, and end it."""
    assert BROWSER is not None
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    profile = tempfile.mkdtemp(prefix="chromium.")

    def place() -> None:  # the pipe is expected at 3 and 4
        first, second = os.dup(read_commands), os.dup(write_answers)
        os.dup2(first, 3)
        os.dup2(second, 4)

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(
        [BROWSER, *flags, "--hide-scrollbars", "about:blank"], preexec_fn=place, close_fds=False, **quiet
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Chromium(commands, answers)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
        shutil.rmtree(profile, ignore_errors=True)


def main() -> None:
    page = Path(sys.argv[1])
    if not page.is_file():
        sys.exit(f"there is no page {page}")
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    trouble = False
    with chromium() as browser:
        for name, width in WIDTHS.items():
            for scheme in ("light", "dark"):
                seen = browser.look_at(page, width, scheme)
                loaded = [url for url in seen.requests if not url.startswith(("file:", "data:"))]
                wrong = [*seen.complaints, *loaded, *(["the page is too wide"] if seen.overflow > 0 else [])]
                wrong += [f"a table is cut: {name}" for name in seen.cut]
                trouble |= bool(wrong)
                print(f"{name}, {scheme}: {'; '.join(wrong) or 'nothing to complain about'}")
                if folder is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / f"{name}-{scheme}.png").write_bytes(seen.screenshot)
    sys.exit(1 if trouble else 0)


if __name__ == "__main__":
    main()
