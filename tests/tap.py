# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prints results of a Python test in the Test Anything Protocol, so that each case is counted by its own name."""

import subprocess
import sys


class Tap:
    def __init__(self):
        self.count = 0
        self.failures = 0

    def _line(self, word, name, note=""):
        self.count += 1
        # A hash starts a directive in TAP.
        print(f"{word} {self.count} - {name.replace('#', 'no. ')}{note}", flush=True)

    def check(self, name, problems):
        """One case: passes if `problems` (a list of lines, or one line) is empty."""
        problems = [problems] if isinstance(problems, str) else list(problems)
        for problem in filter(None, problems):
            for line in str(problem).splitlines():
                print(f"# {line}")
        if any(problems):
            self.failures += 1
            self._line("not ok", name)
        else:
            self._line("ok", name)

    def skip(self, name, reason):
        self._line("ok", name, f" # SKIP {reason}")

    def measured(self, text):
        """A number for people to read; it decides nothing."""
        print(f"# measured: {text}", flush=True)

    def finish(self):
        print(f"1..{self.count}")
        sys.exit(1 if self.failures or not self.count else 0)


class Failed(Exception):
    """What a case found."""


class Skipped(Exception):
    """Why a case cannot run here."""


def require(condition, text):
    if not condition:
        raise Failed(text)


def run_cases(functions):
    """Runs each function whose name begins with `case_`; `functions` is the globals() of a test."""
    tap = Tap()
    for name, case in list(functions.items()):
        if name.startswith("case_"):
            title = name[len("case_"):].replace("_", " ")
            try:
                case()
                tap.check(title, [])
            except Skipped as reason:
                tap.skip(title, reason)
            except (Failed, ValueError, KeyError, OSError, subprocess.SubprocessError) as found:
                tap.check(title, f"{type(found).__name__}: {found}")
    tap.finish()
