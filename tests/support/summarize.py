#!/usr/bin/env python3
"""Counts test cases: reads Bazel's build events and the JUnit files they name, prints "N passed, N failed" last.

usage: summarize.py FOLDER

FOLDER holds one NAME.json (--build_event_json_file) for each run of Bazel, and NAME.broken where that run itself failed.
A test program that writes no cases counts as one case. Exit status 0 only if something passed and nothing failed.
"""

import collections
import json
import pathlib
import sys
import urllib.parse
import xml.etree.ElementTree


class Summary:
    def __init__(self):
        self.passed = 0
        self.failed = []  # names
        self.skipped = []  # "name: reason"

    def add_cases(self, label, xml_path, program_passed):
        """Adds the cases of one test program."""
        failed_before = len(self.failed)
        cases = _read_cases(xml_path)
        for name, verdict, reason in cases:
            full_name = f"{label} {name}"
            if verdict == "passed":
                self.passed += 1
            elif verdict == "skipped":
                self.skipped.append(f"{full_name}: {reason}")
            else:
                self.failed.append(full_name)
        if program_passed and not cases:
            self.passed += 1
        if not program_passed and len(self.failed) == failed_before:
            self.failed.append(f"{label} (the program itself: crash, time-out or leak)")


def _read_cases(xml_path):
    """[(name, passed | failed | skipped, reason)]; empty when there is no usable file."""
    try:
        root = xml.etree.ElementTree.parse(xml_path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return []
    cases = []
    for case in root.iter("testcase"):
        name = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            cases.append((name, "failed", ""))
        elif skipped is not None:
            lines = (skipped.get("message") or skipped.text or "no reason given").strip().splitlines()
            cases.append((name, "skipped", lines[-1]))
        elif case.get("status") == "notrun":
            cases.append((name, "skipped", "disabled in the source"))
        else:
            cases.append((name, "passed", ""))
    return cases


def _read_events(path):
    """(test results by (label, run, shard), labels that did not build)."""
    results = collections.OrderedDict()
    not_built = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:  # cut short by a crash of Bazel, which its exit status has told
            continue
        identity = event.get("id", {})
        if "testResult" in identity:
            key = identity["testResult"]
            # A later attempt of the same run replaces an earlier one.
            results[(key["label"], key.get("run", 1), key.get("shard", 1))] = event["testResult"]
        elif "targetCompleted" in identity:
            if "aborted" in event or not event.get("completed", {}).get("success", False):
                not_built.append(identity["targetCompleted"]["label"])
    tested = {label for label, _, _ in results}
    return results, [label for label in not_built if label not in tested]


def _xml_path(result):
    for output in result.get("testActionOutput", []):
        if output["name"] == "test.xml":
            return urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
    return "(none)"


def summarize(folder):
    summary = Summary()
    for events in sorted(folder.glob("*.json")):
        results, not_built = _read_events(events)
        prefix = "" if events.stem == "plain" else f"[{events.stem}] "
        for (label, _, _), result in results.items():
            summary.add_cases(prefix + label, _xml_path(result), result.get("status") == "PASSED")
        summary.failed += [f"{prefix}{label} (did not build)" for label in not_built]
    for broken in sorted(folder.glob("*.broken")):
        if not summary.failed:
            summary.failed.append(f"{broken.stem}: {broken.read_text(encoding='utf-8').strip()}")
    return summary


def main():
    summary = summarize(pathlib.Path(sys.argv[1]))
    for title, names in (("skipped", summary.skipped), ("FAILED", summary.failed)):
        for name in names:
            print(f"{title}: {name}")
    if summary.skipped:
        print(f"{len(summary.skipped)} skipped")
    print(f"{summary.passed} passed, {len(summary.failed)} failed")
    return 0 if summary.passed and not summary.failed else 1


if __name__ == "__main__":
    sys.exit(main())
