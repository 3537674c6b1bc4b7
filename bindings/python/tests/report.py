# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs all tests and writes a line of JSON for each: its name, whether it passed, failed or was skipped, and why.
Usage: python3 -m tests.report [--without-numpy] OUTPUT"""

import importlib.abc
import json
import sys
import unittest


class NoNumpy(importlib.abc.MetaPathFinder):
    """Makes numpy impossible to import, as if it were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class Result(unittest.TestResult):
    def __init__(self, out):
        super().__init__()
        self.out, self.faults = out, []

    def write(self, test, outcome, note=""):
        name = test.id().removeprefix("tests.") if hasattr(str, "removeprefix") else test.id()
        self.out.write(json.dumps({"name": name, "outcome": outcome, "note": note}) + "\n")
        self.out.flush()

    def startTest(self, test):
        super().startTest(test)
        self.faults, self.reason = [], None

    def addError(self, test, error):
        super().addError(test, error)
        self.faults.append(self.errors[-1][1])
        if not hasattr(test, "_testMethodName") or type(test).__name__ == "_ErrorHolder":
            self.write(test, "failed", self.errors[-1][1])  # while a class or module was set up

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.faults.append(self.failures[-1][1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.faults.append(f"{subtest}\n{self._exc_info_to_string(error, test)}")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.reason = reason

    def stopTest(self, test):
        super().stopTest(test)
        if self.faults:
            self.write(test, "failed", "\n".join(self.faults))
        elif self.reason is not None:
            self.write(test, "skipped", self.reason)
        else:
            self.write(test, "passed")


def main():
    arguments = sys.argv[1:]
    if arguments[0] == "--without-numpy":
        sys.meta_path.insert(0, NoNumpy())
        arguments.pop(0)
    with open(arguments[0], "w", encoding="utf-8") as out:
        result = Result(out)
        unittest.defaultTestLoader.discover("tests", top_level_dir=".").run(result)
    sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)


if __name__ == "__main__":
    main()
