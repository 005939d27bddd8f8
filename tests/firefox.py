"""Debian's Firefox, driven by Marionette: playwright can drive no Firefox but its own.

    with Firefox() as browser:
        browser.open(url)
        browser.run("return document.title")

Source: https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html
"""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

_PROGRAMS = ("firefox-esr", "firefox")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_PATIENCE_S = 60
_KEYS = {
    "Enter": "\ue007", "Tab": "\ue004", "Escape": "\ue00c", "ArrowDown": "\ue015", "Home": "\ue011",
    "End": "\ue010", "PageDown": "\ue00f", "PageUp": "\ue00e",
}  # fmt: skip


def find_firefox() -> str | None:
    """Return the program, or None where there is none."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


class Firefox:
    """A headless Firefox with one page.

    Attributes:
        said: The file to which it writes what pages report.
    """

    def __init__(self, size: tuple[int, int] = (1280, 800)) -> None:
        program = find_firefox()
        assert program is not None, "apt-get install firefox-esr"
        self._folder = Path(tempfile.mkdtemp())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {
            "marionette.port": port,
            "devtools.console.stdout.content": True,
            "browser.shell.checkDefaultBrowser": False,
            "datareporting.policy.dataSubmissionEnabled": False,
            "app.update.enabled": False,
        }
        lines = (
            f"user_pref({json.dumps(key)}, {json.dumps(one)});" for key, one in settings.items()
        )
        (self._folder / "user.js").write_text("\n".join(lines))
        self.said = self._folder / "said"
        with self.said.open("w") as said:
            self._process = subprocess.Popen(
                [program, "--headless", "--marionette", "--no-remote", "--profile", self._folder],
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self._last = 0
        self._socket = self._connect(port)
        self._file = self._socket.makefile("rb")
        self._read()
        self._ask("WebDriver:NewSession", {"capabilities": {}})
        width, height = size
        self._ask("WebDriver:SetWindowRect", {"width": width, "height": height})

    def _connect(self, port: int) -> socket.socket:
        end = time.monotonic() + _PATIENCE_S
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
            assert time.monotonic() < end, f"Firefox did not start: {self.said.read_text()}"
            time.sleep(0.1)

    def _read(self) -> Any:
        length = b""
        while not length.endswith(b":"):
            sign = self._file.read(1)
            assert sign, "Firefox ended"
            length += sign
        return json.loads(self._file.read(int(length[:-1])))

    def _ask(self, command: str, given: dict[str, Any] | None = None) -> Any:
        self._last += 1
        data = json.dumps([0, self._last, command, given or {}]).encode()
        self._socket.sendall(b"%d:%s" % (len(data), data))
        _, _, error, told = self._read()
        assert error is None, error
        return told

    def open(self, url: str) -> None:
        """Open an address in the outermost frame."""
        self._ask("WebDriver:SwitchToFrame", {"id": None})
        self._ask("WebDriver:Navigate", {"url": url})

    def enter_frame(self) -> None:
        """Look into the first frame of the page from here on."""
        frame = self.wait("return document.querySelector('iframe')")
        self._ask("WebDriver:SwitchToFrame", {"element": frame[_ELEMENT]})

    def leave_frame(self) -> None:
        """Look at the page itself again."""
        self._ask("WebDriver:SwitchToFrame", {"id": None})

    def run(self, script: str, *given: object) -> Any:
        """Run the body of a function in the page, and return its result."""
        # Without a sandbox, scripts see what those of the page have set.
        asked = {"script": script, "args": list(given), "sandbox": None}
        return self._ask("WebDriver:ExecuteScript", asked)["value"]

    def wait(self, script: str, *given: object) -> Any:
        """Run a script until its result is true, and return it."""
        end = time.monotonic() + _PATIENCE_S
        while not (found := self.run(script, *given)):
            assert time.monotonic() < end, script
            time.sleep(0.05)
        return found

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, where the focus is."""
        for key in keys:
            value = _KEYS.get(key, key)
            actions = [{"type": kind, "value": value} for kind in ("keyDown", "keyUp")]
            sequence = {"type": "key", "id": "keys", "actions": actions}
            self._ask("WebDriver:PerformActions", {"actions": [sequence]})

    def click(self, x: float, y: float, times: int = 1) -> None:
        """Click on a place of the frame."""
        down_up = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}] * times
        actions = [{"type": "pointerMove", "x": round(x), "y": round(y)}, *down_up]
        sequence = {"type": "pointer", "id": "mouse", "actions": actions}
        self._ask("WebDriver:PerformActions", {"actions": [sequence]})

    def take_picture(self, path: Path) -> None:
        """Write a picture of what is seen."""
        told = self._ask("WebDriver:TakeScreenshot", {"full": False})
        path.write_bytes(base64.b64decode(told["value"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._socket.close()
        self._process.terminate()
        self._process.wait(30)
        shutil.rmtree(self._folder)
