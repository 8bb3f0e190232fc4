"""The count that tests/run.sh ends with: nothing that failed may be lost, nothing counted twice."""

import json
import os
import pathlib
import tempfile
import unittest

import case_report
import summarize


class Summarize(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ["TEST_TMPDIR"]))
        self.events = []

    def add_result(self, label, status, xml, attempt=1):
        path = self.folder / f"{len(self.events)}.xml"
        path.write_text(xml, encoding="utf-8")
        self.events.append({
            "id": {"testResult": {"label": label, "run": 1, "attempt": attempt}},
            "testResult": {"status": status,
                           "testActionOutput": [{"name": "test.log", "uri": "file:///none"},
                                                {"name": "test.xml", "uri": path.as_uri()}]},
        })

    def summary(self):
        lines = "\n".join(json.dumps(event) for event in self.events)
        (self.folder / "plain.json").write_text(lines + "\n", encoding="utf-8")
        return summarize.summarize(self.folder)

    def test_cases_are_counted_not_programs(self):
        self.add_result("//a:t", "PASSED", '<testsuites><testsuite><testcase name="x" status="run"/>'
                                           '<testcase name="y" status="run"/></testsuite></testsuites>')
        self.assertEqual((self.summary().passed, self.summary().failed), (2, []))

    def test_failed_and_skipped_cases_are_named(self):
        self.add_result("//a:t", "FAILED", '<testsuites><testsuite>'
                                           '<testcase classname="C" name="bad"><failure message="m"/></testcase>'
                                           '<testcase classname="C" name="gpu"><skipped message="f.cc:1&#10;no GPU"/>'
                                           '</testcase><testcase classname="C" name="off" status="notrun"/>'
                                           '</testsuite></testsuites>')
        summary = self.summary()
        self.assertEqual(summary.failed, ["//a:t C.bad"])
        self.assertEqual(summary.skipped, ["//a:t C.gpu: no GPU", "//a:t C.off: disabled in the source"])
        self.assertEqual(summary.passed, 0)

    def test_program_that_fails_after_its_cases_passed_counts_as_failed(self):
        self.add_result("//a:t", "FAILED", '<testsuites><testsuite><testcase name="x"/></testsuite></testsuites>')
        self.assertEqual(len(self.summary().failed), 1)
        self.assertEqual(self.summary().passed, 1)

    def test_program_without_cases_counts_as_one(self):
        self.add_result("//a:t", "PASSED", "")
        self.add_result("//a:u", "TIMEOUT", "not xml")
        self.assertEqual((self.summary().passed, len(self.summary().failed)), (1, 1))

    def test_later_attempt_replaces_an_earlier_one(self):
        self.add_result("//a:t", "FAILED", "", attempt=1)
        self.add_result("//a:t", "PASSED", "", attempt=2)
        self.assertEqual((self.summary().passed, self.summary().failed), (1, []))

    def test_targets_that_do_not_build_count_as_failed(self):
        self.events.append({"id": {"targetCompleted": {"label": "//a:lib"}}, "completed": {"success": False}})
        self.events.append({"id": {"targetCompleted": {"label": "//a:ok"}}, "completed": {"success": True}})
        self.events.append({"id": {"targetCompleted": {"label": "//a:t"}}, "aborted": {"reason": "SKIPPED"}})
        self.assertEqual(self.summary().failed, ["//a:lib (did not build)", "//a:t (did not build)"])

    def test_broken_build_without_any_event_counts_as_failed(self):
        (self.folder / "plain.broken").write_text("bazel test exited with status 1\n", encoding="utf-8")
        self.assertEqual(self.summary().failed, ["plain: bazel test exited with status 1"])


if __name__ == "__main__":
    case_report.main()
