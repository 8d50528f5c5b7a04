"""A headless Chromium driven over a pipe: width, light or dark, and what a page then says of itself.

Rule: one browser, one page at a time, no network but 127.0.0.1; every answer is waited for within a bound.
"""

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
HEIGHT = 900
LOADED = """new Promise((loaded) => {
  const asked = () => document.readyState === "complete" ? requestAnimationFrame(() => setTimeout(loaded, 100)) : setTimeout(asked, 20);
  asked();
})"""


class Browser:
    """Chromium with one page; `events` is all that it reported: requests, console, errors."""

    def __init__(self, profile, timeout_s=150):
        self.until, self.asked, self.buffer, self.events, self.session = (
            time.monotonic() + timeout_s,
            0,
            b"",
            [],
            {},
        )
        theirs_in, self.to = os.pipe()
        self.come, theirs_out = os.pipe()
        # Chromium reads from 3 and writes to 4, whatever numbers the pipes have here.
        line = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", line, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | {"TMPDIR": str(Path(profile).parent)},  # what it leaves there goes with the test
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self):
        (page,) = [t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.come)

    def send(self, method, **parameters):
        """Give an order and return its answer."""
        self.asked += 1
        order = {"id": self.asked, "method": method, "params": parameters, **self.session}
        self._write(json.dumps(order).encode() + b"\0")
        while (summary := self._read()).get("id") != self.asked:
            self.events.append(summary)
        assert "error" not in summary, summary
        return summary["result"]

    def open(self, url, width):
        """Open a page as a window of that width, in the light, and wait until it stands."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=HEIGHT,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.scheme("light")
        self.send("Page.navigate", url=url)
        self.run(LOADED)

    def scheme(self, name):
        """Turn light or dark under the open page."""
        self.send(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}]
        )
        self.run("new Promise((drawn) => setTimeout(drawn, 100))")

    def run(self, script):
        """The value of a script in the page; a promise is waited for."""
        summary = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in summary, summary["exceptionDetails"]
        return summary["result"].get("value")

    def requests(self):
        """What pages asked for, but files and what stands in the page itself."""
        urls = [
            e["params"]["request"]["url"]
            for e in self.events
            if e.get("method") == "Network.requestWillBeSent"
        ]
        return {url for url in urls if not url.startswith(("file:", "data:", "blob:"))}

    def complaints(self):
        """What stood on the console, and errors that nobody caught."""
        output = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [event["params"] for event in self.events if event.get("method") in output]

    def _write(self, order):
        while order:
            order = order[os.write(self.to, order) :]

    def _read(self):
        with selectors.DefaultSelector() as ready:
            ready.register(self.come, selectors.EVENT_READ)
            while b"\0" not in self.buffer:
                assert ready.select(max(0, self.until - time.monotonic())), (
                    "the browser did not answer in time"
                )
                part = os.read(self.come, 1 << 20)
                assert part, "the browser went away"
                self.buffer += part
        summary, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(summary)
