"""A headless Chromium, driven over its debugging pipe: one process for all pages of a test session."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

#: As Debian and others call it.
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_S = 60.0


def chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def axe_source() -> str | None:
    """axe-core as npm installed it: globally, or where ``NODE_PATH`` says."""
    roots = [Path(p) for p in os.environ.get("NODE_PATH", "").split(os.pathsep) if p]
    roots += [Path("/usr/lib/node_modules"), Path("/usr/local/lib/node_modules")]
    if npm := shutil.which("npm"):
        roots.append(Path(subprocess.run([npm, "root", "-g"], capture_output=True, text=True).stdout.strip()))
    found = next(
        (root / "axe-core" / "axe.min.js" for root in roots if (root / "axe-core" / "axe.min.js").is_file()), None
    )
    return found.read_text(encoding="utf-8") if found else None


class Browser:
    """One page that is navigated again and again. ``events`` are the page's since the last :meth:`open`."""

    def __init__(self, path: str, profile: Path) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4; a shell puts the pipes there.
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += [f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        words = ["bash", "-c", f'exec "$@" 3<&{orders} 4>&{answers}', "chromium", path, *flags]
        self._process = subprocess.Popen(words, pass_fds=(orders, answers), stderr=subprocess.DEVNULL)
        os.close(orders)
        os.close(answers)
        self._reader = os.fdopen(self._answers, "rb")
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        order = {"id": self._number, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        left = memoryview(json.dumps(order).encode() + b"\0")
        while left:
            left = left[os.write(self._orders, left) :]
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            assert byte, "chromium ended"
            text += byte
        found: dict[str, Any] = json.loads(text)
        return found

    def open(self, page: Path, width: int, scheme: str) -> None:
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def evaluate(self, script: str) -> Any:
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def requests(self) -> list[str]:
        """Addresses that the page asked for, but itself and what it holds inline."""
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked[1:] if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """What the console, the policy or a script had to say."""
        logged = [e["params"]["entry"]["text"] for e in self.events if e.get("method") == "Log.entryAdded"]
        raised = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return logged + [json.dumps(e["params"])[:300] for e in self.events if e.get("method") in raised]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._reader.close()
        os.close(self._orders)
