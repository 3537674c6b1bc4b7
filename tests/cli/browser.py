# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A real browser without a window, driven by the DevTools protocol over two pipes."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find():
    """The first program that is installed; None if none is."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    def __init__(self, process, to_browser, from_browser):
        self.process, self.to_browser, self.from_browser = process, to_browser, from_browser
        self.number, self.buffer, self.events = 0, b"", []
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def _receive(self, seconds):
        """The next message; None when the time is over."""
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_browser], [], [], max(0, end - time.monotonic()))
            if not ready:
                return None
            piece = os.read(self.from_browser, 1 << 16)
            if not piece:
                raise OSError("the browser has ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, parameters=None):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters or {}}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while (left := end - time.monotonic()) > 0:
            answer = self._receive(left)
            if answer is None:
                break
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise OSError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)
        raise OSError(f"the browser has not answered {method} for a minute")

    def open(self, url, dark=False):
        """Loads a page; returns the lines that it wrote to the console, and all addresses that it asked for."""
        self.ask("Emulation.setEmulatedMedia",
                 {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.events = []
        self.ask("Page.navigate", {"url": url})
        end = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            event = self._receive(end - time.monotonic())
            if event is None:
                raise OSError(f"{url} has not loaded for a minute")
            self.events.append(event)
        # What comes late: a script, or an image that is asked for after the rest.
        while event := self._receive(0.3):
            self.events.append(event)
        said, asked = [], []
        for event in self.events:
            method, parameters = event["method"], event["params"]
            if method == "Network.requestWillBeSent":
                asked.append(parameters["request"]["url"])
            elif method == "Log.entryAdded":
                said.append(parameters["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                said.append(" ".join(str(argument.get("value")) for argument in parameters["args"]))
            elif method == "Runtime.exceptionThrown":
                said.append(parameters["exceptionDetails"]["text"])
        return said, asked

    def evaluate(self, expression):
        answer = self.ask("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        if "exceptionDetails" in answer:
            raise OSError(f"{answer['exceptionDetails']}")
        return answer["result"].get("value")


@contextlib.contextmanager
def started(program):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        child_in, to_browser = os.pipe()
        from_browser, child_out = os.pipe()

        # The browser reads descriptor 3 and writes to 4.
        def move():
            first, second = os.dup(child_in), os.dup(child_out)
            os.dup2(first, 3)
            os.dup2(second, 4)

        with subprocess.Popen(
                # Root, and many a container, can have no sandbox; the pages are our own.
                [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 f"--user-data-dir={folder}", "--no-first-run", "--disable-background-networking"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
                preexec_fn=move, env={**os.environ, "LD_LIBRARY_PATH": ""}) as process:
            os.close(child_in)
            os.close(child_out)
            try:
                yield Browser(process, to_browser, from_browser)
            finally:
                os.close(to_browser)
                os.close(from_browser)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
