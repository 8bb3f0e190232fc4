"""docs/metrics.md says what the programs say. After a change of a table:

    bazel build //coordinator:bitshard-coordinator //worker:bitshard-worker
    python3 tests/e2e/metrics_doc_test.py --write bazel-bin
"""

import pathlib
import subprocess
import sys
import unittest

PAGE = pathlib.Path("docs/metrics.md")
HEAD = """# Metrics

*Made from the tables in `coordinator/metrics_table.cc` and `worker/metrics.cc` by `tests/e2e/metrics_doc_test.py --write`;
`bitshard-coordinator --list-metrics` and `bitshard-worker --list-metrics` print the same.*

Both processes serve Prometheus text at `/metrics`: the coordinator at `--metrics-port` (9464; `bitshard serve` picks one
and prints it), each worker at its own `--metrics-port` (none unless it is given, 0 picks one).

- Every series whose labels are known beforehand is there from the start, at 0. A worker's series with a `rank` begin when
  the rank is assigned. All series of the coordinator have the labels `model_name` and `engine`, those of the process
  itself (`process_`) none.
- No label holds a request's id, a caller, or anything else that a caller chooses.
- Bounds of buckets are those of vLLM's metrics of the same name and more. Times are in seconds.
- A request is counted in exactly one place: at every scrape received = ended + rejected + validating + waiting + running +
  paused + recovering. It is always in exactly one phase, timed by one clock: the six phases add up to its latency.
- `exposer_` series, of the library that serves the page, are about the scrapes themselves.
"""


def page(programs):
    def listed(program):
        return subprocess.run([str(programs / program), "--list-metrics"], check=True, capture_output=True,
                              text=True).stdout

    return (HEAD + "\n## Coordinator\n\n" + listed("coordinator/bitshard-coordinator") +
            "\n## Worker\n\n" + listed("worker/bitshard-worker"))


class MetricsDocTest(unittest.TestCase):
    def test_the_page_is_what_the_programs_say(self):
        self.maxDiff = None
        self.assertEqual(PAGE.read_text(), page(pathlib.Path.cwd()),
                         "write it anew: python3 tests/e2e/metrics_doc_test.py --write bazel-bin")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        PAGE.write_text(page(pathlib.Path(sys.argv[2])))
    else:
        import case_report
        case_report.main()
