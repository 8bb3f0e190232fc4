"""Runs a module's unittest cases and writes them as JUnit XML for tests/support/summarize.py.

Usage, at the end of a test file: if __name__ == "__main__": case_report.main()
Arguments that are not unittest's are left in sys.argv for the test.
"""

import os
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree


class _Result(unittest.TextTestResult):
    def __init__(self, *args):
        super().__init__(*args)
        self.suite = ElementTree.Element("testsuite", name="python")
        self._started = {}

    def startTest(self, test):
        self._started[test.id()] = time.monotonic()
        super().startTest(test)

    def _add(self, test, kind=None, message=""):
        # A failed set-up of a class or module is no TestCase, but it counts as a failed case all the same.
        name = test.id()
        seconds = time.monotonic() - self._started.get(name, time.monotonic())
        classname, _, method = name.rpartition(".")
        case = ElementTree.SubElement(
            self.suite, "testcase", classname=classname, name=method, time=f"{seconds:.3f}")
        if kind:
            ElementTree.SubElement(case, kind, message=message)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._add(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._add(test, "failure", str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self._add(test, "error", str(err[1]))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._add(test, "skipped", reason)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._add(test, "failure", f"{subtest}: {err[1]}")


def main(module="__main__"):
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[module])
    result = unittest.TextTestRunner(resultclass=_Result, verbosity=2).run(suite)
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        root = ElementTree.Element("testsuites")
        root.append(result.suite)
        # JUnit readers refuse control characters, which failure messages may quote.
        text = ElementTree.tostring(root, encoding="unicode")
        text = "".join(c if c in "\n\t" or c >= " " else "?" for c in text)
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
