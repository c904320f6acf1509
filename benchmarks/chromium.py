"""A Chromium without a window, driven over a pair of pipes by its own DevTools protocol: no library is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE: Final = 30.0


def find() -> str | None:
    """The path of a Chromium: of ORTOPT_CHROMIUM, or one on the path."""
    return os.environ.get("ORTOPT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with one page.

    Attributes:
        problems: What the page has complained of: exceptions, errors on the console, violations of its policy.
        dialogs: Texts of dialogs that a page has opened.
        requests: Addresses that a page has asked for, other than its own.
    """

    def __init__(self, path: str) -> None:
        self.problems: list[str] = []
        self.dialogs: list[str] = []
        self.requests: list[str] = []
        self._buffer = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ortopt-chromium-", ignore_cleanup_errors=True)
        self._start(path)
        target = self.call("Target.createTarget", {"url": "about:blank"}, session=False)["targetId"]
        self._session = self._attached(target)

    def _attached(self, target: str) -> str:
        """A session with a target, whose problems, dialogs and requests are written down."""
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=False)
        session = self._session = str(attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return session

    def _start(self, path: str) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [
            path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={self._folder.name}", "about:blank",
        ]  # fmt: skip
        script = f'exec 3<&{to_read} 4>&{to_write}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._folder.cleanup()

    # -- the protocol -----------------------------------------------------------------------------------------------

    def call(self, method: str, parameters: dict[str, Any] | None = None, *, session: bool = True) -> dict[str, Any]:
        """Call a method of the protocol, and wait for its answer."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + PATIENCE
        while number not in self._answers:
            self._receive(deadline)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self._read], [], [], left)[0]:
            raise TimeoutError("Chromium does not answer")
        data = os.read(self._read, 1 << 20)
        if not data:
            raise RuntimeError("Chromium has ended")
        *messages, self._buffer = (self._buffer + data).split(b"\0")
        for message in messages:
            self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, about = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in {"error", "warning", "assert"}:
            self.problems.append(str([argument.get("value") for argument in about["args"]]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in {"error", "warning"}:
            self.problems.append(about["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(about["message"])
            self._answer_dialog()
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(("file:", "about:")):
            self.requests.append(about["request"]["url"])

    def _answer_dialog(self) -> None:
        message = {"id": -1, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
        os.write(self._write, json.dumps({**message, "sessionId": self._session}).encode() + b"\0")

    @contextlib.contextmanager
    def in_frame(self) -> Iterator[None]:
        """What is asked meanwhile is asked of the page's sandboxed frame, which is a target of its own."""
        outer = self._session
        targets = wait_for(self._frames, "there is a frame")
        try:
            self._attached(targets[-1])
            yield
        finally:
            self._session = outer

    def _frames(self) -> list[str]:
        known = self.call("Target.getTargets", session=False)["targetInfos"]
        return [one["targetId"] for one in known if one["type"] == "iframe"]

    # -- what tests do ----------------------------------------------------------------------------------------------

    def size(self, width: int, height: int) -> None:
        """Give the window a size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, *, theme: str = "light", medium: str = "") -> None:
        """Say which theme the user prefers, and whether the page is on paper."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.call("Emulation.setEmulatedMedia", {"media": medium, "features": features})

    def open(self, path: Path) -> float:
        """Open a page of ortopt; seconds from the start of its navigation until it is ready."""
        self.call("Page.navigate", {"url": path.absolute().as_uri()})
        address = json.dumps(path.absolute().as_uri())
        self.wait(f"location.href === {address} && document.documentElement?.dataset.ready")
        return float(self.run("document.documentElement.dataset.ready")) / 1000

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        parameters = {"expression": expression, "returnByValue": True, "awaitPromise": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", parameters)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true."""
        return wait_for(lambda: self.run(expression), expression)

    def click(self, selector: str, *, nth: int = 0) -> None:
        """Click an element with the mouse."""
        where = self.run(
            f"(() => {{ const e = document.querySelectorAll({json.dumps(selector)})[{nth}];"
            " e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2] })()"
        )
        at = {"x": where[0], "y": where[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", {"type": kind, **at})

    def press(self, key: str, text: str = "") -> None:
        """Press a key."""
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", "key": key, "text": text})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", "key": key})

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self.call("Input.insertText", {"text": text})

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Take a picture of the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """The page on paper."""
        return base64.b64decode(self.call("Page.printToPDF", {"printBackground": True})["data"])


def wait_for(true: Callable[[], Any], what: str) -> Any:
    """Ask again until the answer is true."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := true()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"never true: {what}")
        time.sleep(0.02)
    return answer


__all__ = ["Chromium", "find"]
