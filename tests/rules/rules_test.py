"""Holds the repository to tests/rules/rules.py and to clang-format; shows for each rule that it can fail."""

import os
import shutil
import subprocess
import unittest

import case_report
import rules

# The real tree, not its copy in the runfiles: the test is tagged to run outside the sandbox. WORKSPACE is a link there.
ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))

# A tree in which every rule holds.
CLEAN = {
    **{name: "" for name in rules.TOP_LEVEL if "." in name or name.isupper()},
    ".ci/run": "#!/usr/bin/env bash\nset -euo pipefail\n",
    "deploy/local/setup.sh": "x=1\n",
    "proto/status_map.h": "// A.\n#pragma once\n#include <grpcpp/support/status.h>\n",
    "kernels/base/check.h": "// A.\n#pragma once\n#include <cstdio>\n#include \"absl/base/config.h\"\n",
    "kernels/cpu/gemm_avx2.cc": "// A.\n#include <immintrin.h>\n",
    "coordinator/BUILD.bazel": 'cc_library(name = "a", deps = ["//kernels/base:check"])\n',
    "coordinator/schedule/queue.h": '// A.\n#pragma once\n#include "kernels/base/check.h"\n',
    "coordinator/schedule/queue.cc": '#include "coordinator/schedule/queue.h"\n// TODO(#12): widen.\n',
    "kernels/base/metric_page.cc": "// A.\n#include <prometheus/registry.h>\n",
    "worker/metrics.h": "// A.\n#pragma once\n",
    "tests/coordinator/schedule/queue_test.cc": '#include "gtest/gtest.h"\n#include "coordinator/schedule/queue.h"\n',
    "coordinator/engine/error_reason.h": '// A.\n#pragma once\nkReasonFull = "QUEUE_FULL";\n',
    "coordinator/frontend/call.cc": '// A.\nWithErrorInfo(Status(StrCat("a) ", f(1))), "NOT_HERE");\n',
    "proto/inference.proto":
        "// Every ErrorInfo.reason, with its code:\n//   QUEUE_FULL  NOT_FOUND  no\n//   NOT_HERE    NOT_FOUND  no\n",
    "docs/clients/README.md": "| INTERNAL | x |\n| `QUEUE_FULL` | x |\n| `NOT_HERE` | x |\n",
    "docs/life_of_a_request.md": "`coordinator/schedule/queue.h: once`\n",
    "docs/life_of_a_weight.md": "`kernels/base/check.h: pragma()`\n",
}

_HEADER = "// A.\n#pragma once\n"
# rule -> planted files, each of which the rule must report
PLANTED = {
    rules.include_rooms: [
        {"kernels/a.h": _HEADER + '#include "proto/status_map.h"\n'},
        {"proto/a.h": _HEADER + '#include "kernels/base/check.h"\n'},
        {"worker/a.h": _HEADER + '#include "coordinator/schedule/queue.h"\n'},
        {"coordinator/a.h": _HEADER + '#  include "worker/metrics.h"\n'},
        {"worker/a.h": _HEADER + '#include "tests/support/near.h"\n'},
        {"kernels/cuda/a.h": _HEADER + '#include "kernels/cpu/b.h"\n'},
    ],
    rules.include_reserved: [
        {"kernels/reference/a.h": _HEADER + "#include <immintrin.h>\n"},
        {"worker/step/a.h": _HEADER + "#include <cuda_runtime.h>\n"},
        {"coordinator/engine/a.h": _HEADER + "#include <grpcpp/grpcpp.h>\n"},
        {"coordinator/engine/a.h": _HEADER + '#include "proto/worker.grpc.pb.h"\n'},
        {"coordinator/shard/a.h": _HEADER + "#include <nlohmann/json.hpp>\n"},
        {"coordinator/metrics.h": _HEADER + "#include <prometheus/counter.h>\n"},
        {"worker/step/a.h": _HEADER + '#include "spdlog/spdlog.h"\n'},
        {"kernels/a.h": _HEADER + '#include "proto/graph.pb.h"\n'},
        {"coordinator/models/a.h": _HEADER + "#include <pcre2.h>\n"},
        {"worker/ops/a.h": _HEADER + '#include "gtest/gtest.h"\n'},
    ],
    rules.include_purity: [
        {"coordinator/schedule/a.h": _HEADER + '#include "absl/time/clock.h"\n'},
        {"coordinator/schedule/a.h": _HEADER + "#include <thread>\n"},
    ],
    rules.include_paths: [
        {"worker/step/a.h": _HEADER + '#include "metrics.h"\n'},
        {"worker/step/a.h": _HEADER + '#include "worker/step/gone.h"\n'},
        {"worker/step/a.h": _HEADER + "#include <worker/metrics.h>\n"},
    ],
    rules.pragma_once: [{"worker/a.h": "// A.\nint x;\n#pragma once\n"}, {"worker/a.h": ""}],
    rules.head_comment: [{"worker/a.h": "#pragma once\n"}, {"worker/alone.cc": "int x;\n"}],
    rules.file_length: [{"worker/a.cc": "// A.\n" * 501}, {"tests/e2e/a.py": "\n" * 501}],
    rules.no_common: [{"worker/common/a.h": _HEADER}, {"tests/utils/a.py": ""}],
    rules.file_names: [{"worker/BlockPool.cc": "// A.\n"}, {"worker/pool_test.cc": "// A.\n"}],
    rules.top_level: [{"scripts/a.sh": ""}, {"Makefile": ""}],
    rules.todo: [{"worker/a.cc": "// TO" "DO: later\n"}, {"worker/a.cc": "int x;  // FIX" "ME\n"}],
    rules.machine_paths: [{"docs/a.md": "see /ho" "me/someone/x\n"}, {"worker/a.cc": '// "../sha' 'red/a"\n'}],
    rules.visibility: [
        {"worker/BUILD.bazel": 'visibility = ["//visibility:public"]\n'},
        {"worker/BUILD.bazel": '    deps = ["//coordinator/schedule:queue"],\n'},
        {"kernels/BUILD.bazel": '        "//proto:graph_cc",\n'},
    ],
    rules.life_documents: [
        {"docs/life_of_a_request.md": "`coordinator/gone.h: Queue`\n"},
        {"docs/life_of_a_weight.md": "`kernels/base/check.h: Gone`\n"},
        {"docs/life_of_a_weight.md": "nothing\n"},
    ],
    rules.test_ids: [
        {"tests/worker/a_test.cc": "// A.\nauto id = absl::StrCat(1, getpid());\n"},
        {"tests/bench/a_bench.cc": "// A.\nauto id = std::to_string(getpid());\n"},
        {"tests/faults/a.py": 'name = f"a-{os.' 'getpid()}"\n'},
        {"deploy/local/a.sh": "#!/usr/bin/env bash\nset -euo pipefail\nlog=/tmp/a.$$\n"},
    ],
    rules.compiler_scratch: [{"deploy/bazel/a.bzl": 'ctx.actions.run_shell(command = "$@", arguments = [NVCC])\n'}],
    rules.error_reasons: [
        {"coordinator/engine/a.cc": '// A.\nWithErrorInfo(s, "BRAND_NEW");\n'},
        {"coordinator/engine/a.h": '// A.\n#pragma once\nkReasonNew = "BRAND_NEW";\n'},
        {"proto/inference.proto": "// Every ErrorInfo.reason, with its code:\n//   QUEUE_FULL  NOT_FOUND  no\n"},
        {"docs/clients/README.md": "| `NOT_HERE` | x |\n"},
        {"docs/clients/README.md": "| `QUEUE_FULL` | x |\n| `NOT_HERE` | x |\n| `GONE` | x |\n"},
    ],
    rules.shell_scripts: [{"deploy/local/a.sh": "#!/usr/bin/env bash\necho\n"}],
}


class RulesCanFail(unittest.TestCase):
    """One case a rule: silent on the clean tree, loud on each planted violation."""

    def check(self, rule):
        self.assertEqual(list(rule(CLEAN)), [])
        self.assertTrue(PLANTED.get(rule), f"{rule.__name__} has no planted violation")
        for planted in PLANTED[rule]:
            path = next(iter(planted))
            name = path.split("/")[0] if rule is rules.top_level else path
            violations = list(rule({**CLEAN, **planted}))
            self.assertTrue(any(name in v for v in violations), f"{rule.__name__} misses {planted}")

    def test_top_level_names_what_is_missing(self):
        tree = {path: text for path, text in CLEAN.items() if path != "LICENSE"}
        self.assertEqual(list(rules.top_level(tree)), ["LICENSE: missing at the top level"])

    def test_clang_format_reports_a_badly_formatted_file(self):
        path = os.path.join(os.environ["TEST_TMPDIR"], "bad.cc")
        with open(path, "w", encoding="utf-8") as file:
            file.write("int   x ;\n")
        self.assertNotEqual(clang_format([path]).returncode, 0)


class RepositoryKeepsTheRules(unittest.TestCase):
    tree = {}

    @classmethod
    def setUpClass(cls):
        cls.tree = rules.read_tree(ROOT)

    def check(self, rule):
        violations = list(rule(self.tree))
        if violations:
            self.fail(rule.__doc__ + "\n" + "\n".join(violations))

    def test_clang_format_is_clean(self):
        paths = sorted(os.path.join(ROOT, p) for p in self.tree if p.endswith((".h", ".cc")))
        report = clang_format(paths)
        files = sorted({line.split(":")[0] for line in report.stderr.splitlines() if "error:" in line})
        self.assertEqual(report.returncode, 0, "run clang-format-14 -i on:\n" + "\n".join(files))


def clang_format(paths):
    program = shutil.which("clang-format-14")
    if program is None:
        raise unittest.SkipTest("clang-format-14 is not installed")
    return subprocess.run([program, "--dry-run", "-Werror", f"--style=file:{ROOT}/.clang-format", *paths],
                          stderr=subprocess.PIPE, text=True, check=False)


# One test method a rule in both classes, so that each rule is a case of its own.
for _rule in rules.ALL:
    for _class in (RulesCanFail, RepositoryKeepsTheRules):
        setattr(_class, f"test_{_rule.__name__}", lambda self, rule=_rule: self.check(rule))

del _class  # a class that has two names in the module would be run twice

if __name__ == "__main__":
    case_report.main()
