"""The rules of the tree, each a function of the tree that returns its violations as text.

A tree is {path from the root: text}. What a rule wants is in its docstring, and a planted violation in rules_test.py
shows that it can fail. design: who may include whom, files, names.
"""

import os
import re

ROOMS = ("proto", "coordinator", "worker", "kernels", "tests")
TOP_LEVEL = {
    "WORKSPACE", "BUILD.bazel", "proto", "coordinator", "worker", "kernels", "deploy", "tests", "README.md", "LICENSE",
    "NOTICE", "SECURITY.md", "docs", ".bazelrc", ".bazelignore", ".clang-format", ".clang-tidy", ".gitignore", ".ci",
}
NOT_OURS = {".git", "user.bazelrc", "bazel-bin", "bazel-out", "bazel-testlogs"}  # made by git, setup.sh and Bazel
CXX = (".h", ".cc", ".cu", ".cuh")
CODE = CXX + (".py", ".sh", ".bzl", ".bazel", ".proto")
MAX_LINES = 500
LONG_ON_PURPOSE = {"proto/inference.proto"}  # the callers' contract: they make their stubs from one file
DATA_FOLDERS = re.compile(r"(^|/)(golden|goldens|testdata|corpus)/")


def read_tree(root):
    """All text files under `root` that are ours; symbolic links and binary files are left out."""
    tree = {}
    for folder, folders, files in os.walk(root):
        inside = os.path.relpath(folder, root)
        if inside == ".":
            inside = ""
            folders[:] = [f for f in folders if f not in NOT_OURS and not f.startswith("bazel-")]
            files = [f for f in files if f not in NOT_OURS]
        folders[:] = [f for f in folders if f != "__pycache__"]
        for name in files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    tree[os.path.join(inside, name)] = file.read()
            except UnicodeDecodeError:
                pass
    return tree


def _lines(tree, suffixes):
    """(path, line number, line) of the files with one of these suffixes."""
    for path in sorted(tree):
        if path.endswith(suffixes) and not DATA_FOLDERS.search(path):
            for number, line in enumerate(tree[path].splitlines(), 1):
                yield path, number, line


def _includes(tree):
    """(path, line number, delimiter, included name) of every include in C++ files."""
    for path, number, line in _lines(tree, CXX):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield path, number, match.group(1), match.group(2)


def _is_under(path, places):
    """Whether `path` is one of `places` or in one that ends with "/"; a "*" matches within a name."""
    for place in places:
        pattern = re.escape(place).replace(r"\*", "[^/]*")
        if re.match(pattern + ("" if place.endswith("/") else "$"), path):
            return True
    return False


# room -> the rooms that it may include
_MAY_INCLUDE = {
    "proto": {"proto"},
    "kernels": {"kernels"},
    "coordinator": {"coordinator", "kernels", "proto"},
    "worker": {"worker", "kernels", "proto"},
    "tests": set(ROOMS),
}
# (included names, what they are, the only places that may include them; tests may include what they test with)
_MAINS = ["coordinator/main.cc", "worker/main.cc", "coordinator/tools/"]
_RESERVED = [
    (r"(.*/)?((x86|imm|[a-z]mm|avx[a-z0-9]*|amx[a-z0-9]*)intrin|cpuid)\.h$", "CPU intrinsics", ["kernels/cpu/"]),
    (r"(cuda|nccl|cublas|cooperative_groups)[^/]*\.h", "CUDA",
     ["kernels/cuda/", "worker/collective/nccl*", "tests/support/"]),
    (r"(grpc|grpcpp|grpc\+\+)/|.*\.grpc\.pb\.h$|proto/status_map\.h$", "gRPC",
     ["proto/status_map.*", "coordinator/frontend/", "coordinator/fleet/", "worker/service/", "docs/clients/", "tests/"] +
     _MAINS),
    (r"nlohmann/", "JSON",
     ["coordinator/checkpoint/", "coordinator/text/", "coordinator/tools/", "coordinator/frontend/kserve*", "tests/"]),
    (r"prometheus/", "Prometheus", ["kernels/base/metric_page.cc", "tests/"]),
    (r"(spdlog|fmt)/", "spdlog (use kernels/base/log.h)", ["kernels/base/log.h", "kernels/base/log.cc"]),
    (r"google/protobuf/|proto/.*\.pb\.h$", "protobuf", ["proto/", "coordinator/", "worker/", "docs/clients/", "tests/"]),
    (r"pcre2", "PCRE2", ["coordinator/text/", "coordinator/checkpoint/name_pattern.cc", "tests/"]),
    (r"unicode/", "ICU", ["coordinator/text/", "tests/"]),
    (r"(gtest|gmock|benchmark)/", "test libraries", ["tests/"]),
]


def include_rooms(tree):
    """proto includes only proto, kernels only kernels, coordinator and worker never each other, nobody but tests tests."""
    for path, number, delimiter, name in _includes(tree):
        room = path.split("/")[0]
        target = name.split("/")[0]
        if room not in ROOMS or target not in ROOMS or delimiter == "<":
            continue
        if target not in _MAY_INCLUDE[room]:
            yield f"{path}:{number}: {room} may not include {target} ({name}): move the line, not the rule"
        for a, b in (("kernels/cpu/", "kernels/cuda/"), ("kernels/cuda/", "kernels/cpu/")):
            if path.startswith(a) and name.startswith(b):
                yield f"{path}:{number}: {a[:-1]} and {b[:-1]} never meet ({name})"


def include_reserved(tree):
    """Libraries are included only in the rooms that own them."""
    for path, number, _, name in _includes(tree):
        for pattern, what, places in _RESERVED:
            if re.match(pattern, name) and not _is_under(path, places):
                yield f"{path}:{number}: {what} ({name}) belongs to {', '.join(places)}"


def include_purity(tree):
    """coordinator/schedule is pure: no clock, no log, no protobuf service, no thread."""
    impure = re.compile(r"absl/time/clock\.h|kernels/base/(log|thread_pool)\.h|thread$|chrono$|random$")
    for path, number, _, name in _includes(tree):
        if path.startswith("coordinator/schedule/") and impure.match(name):
            yield f"{path}:{number}: the scheduler is pure (virtual clock, replayable): no {name}"


def include_paths(tree):
    """Our headers are included by their full path from the root, in quotes, and exist."""
    own_names = {os.path.basename(path) for path in tree}
    for path, number, delimiter, name in _includes(tree):
        room = name.split("/")[0]
        if delimiter == '"' and "/" not in name and name in own_names:
            yield f'{path}:{number}: "{name}": include by the full path from the root'
        elif delimiter == "<" and room in ROOMS:
            yield f"{path}:{number}: <{name}>: our own headers go in quotes"
        elif delimiter == '"' and room in ROOMS and not name.endswith(".pb.h") and name not in tree:
            yield f'{path}:{number}: "{name}" does not exist'


def pragma_once(tree):
    """Every header has `#pragma once` before its first code."""
    for path, text in sorted(tree.items()):
        if path.endswith((".h", ".cuh")):
            code = [line for line in text.splitlines() if line.strip() and not line.startswith("//")]
            if not code or code[0].strip() != "#pragma once":
                yield f"{path}: the first line after the head comment is not #pragma once"


def head_comment(tree):
    """Every C++ file opens with what a stranger asks: a comment in the header, or in the .cc that has none."""
    for path, text in sorted(tree.items()):
        has_header = re.sub(r"\.(cc|cu)$", ".h", path) in tree and not path.endswith((".h", ".cuh"))
        is_test = path.startswith("tests/") and path.endswith(("_test.cc", "_bench.cc"))
        if path.endswith(CXX) and not has_header and not is_test and not text.startswith("//"):
            yield f"{path}: open with a comment: what is this, who owns it, which thread, which invariants"


def file_length(tree):
    """No code file has more than 500 lines. Tables of data go to .inc files, goldens to golden/."""
    for path, text in sorted(tree.items()):
        lines = text.count("\n")
        exempt = DATA_FOLDERS.search(path) or path in LONG_ON_PURPOSE
        if path.endswith(CODE) and not exempt and lines > MAX_LINES:
            yield f"{path}: {lines} lines, more than {MAX_LINES}. What is the second thing that this file does?"


def no_common(tree):
    """No room for things without a home."""
    for path in sorted(tree):
        for part in path.split("/")[:-1]:
            if part in ("common", "util", "utils", "misc", "helpers", "deprecated"):
                yield f"{path}: no {part}/: a helper lives with its only user, later in kernels/base under its own name"


def file_names(tree):
    """Files of code are named like_this.cc, tests like_this_test.cc under tests/."""
    for path in sorted(tree):
        name = os.path.basename(path)
        fixed = name in ("BUILD.bazel", "__init__.py")  # by Bazel and Python
        if path.endswith(CODE) and not fixed and not re.fullmatch(r"[a-z][a-z0-9_]*\.[a-z]+", name):
            yield f"{path}: name it like_this"
        is_test = name.endswith(("_test.cc", "_bench.cc", "_test.py")) and name != "self_test.cc"  # that one ships
        if is_test and not path.startswith("tests/"):
            yield f"{path}: tests and benchmarks mirror the tree under tests/"


def top_level(tree):
    """The top level is exactly the fixed set."""
    found = {path.split("/")[0] for path in tree}
    for name in sorted(found - TOP_LEVEL):
        yield f"{name}: the top level is fixed: which room does it belong to?"
    for name in sorted(TOP_LEVEL - found):
        yield f"{name}: missing at the top level"


def todo(tree):
    """A TODO carries an issue number and says what to do; FIXME, XXX and HACK are not used."""
    for path, number, line in _lines(tree, CODE):
        if path.startswith("tests/rules/"):
            continue
        if re.search(r"\bTODO\b", line) and not re.search(r"\bTODO\(#\d+\): \S", line):
            yield f"{path}:{number}: write TODO(#issue): what to do"
        if re.search(r"(//|#).*\b(FIXME|XXX|HACK)\b", line):
            yield f"{path}:{number}: no FIXME, XXX, HACK: mend it, or TODO(#issue): what to do"


# Spelled in parts, so that this file does not violate its own rule.
_MACHINE_PATHS = re.compile("|".join(("/wo" + "rk/", "/ho" + "me/", "/ro" + "ot/", r"\.\./sha" + "red", "/Us" + "ers/")))


def machine_paths(tree):
    """Nothing names a folder of somebody's machine."""
    for path in sorted(tree):
        if DATA_FOLDERS.search(path):
            continue
        for number, line in enumerate(tree[path].splitlines(), 1):
            if _MACHINE_PATHS.search(line):
                yield f"{path}:{number}: a path of one machine: {line.strip()[:80]}"


def visibility(tree):
    """Only words (proto), arithmetic (kernels) and the outside world (deploy) are visible to everyone."""
    for path, number, line in _lines(tree, ("BUILD.bazel",)):
        room = path.split("/")[0]
        if room in ("coordinator", "worker", "tests") and "//visibility:public" in line:
            yield f"{path}:{number}: no public targets in {room}: name who may use them"
        for a, b in (("coordinator", "worker"), ("worker", "coordinator"), ("proto", "coordinator"), ("proto", "worker"),
                     ("kernels", "coordinator"), ("kernels", "worker"), ("kernels", "proto")):
            if room == a and re.match(rf'\s*(deps = \[)?"//{b}(/|:)(?!.*:__)', line):
                yield f"{path}:{number}: {a} may not depend on {b}"


LIFE_DOCUMENTS = ("docs/life_of_a_request.md", "docs/life_of_a_weight.md")


def life_documents(tree):
    """Each `file: symbol` of the two life documents exists: the file is there and has the symbol."""
    for document in LIFE_DOCUMENTS:
        if document not in tree:
            yield f"{document} is missing"
            continue
        names = re.findall(r"`([A-Za-z0-9_./]+\.[a-z]+): ([A-Za-z0-9_:~]+)(?:\(\))?`", tree[document])
        if not names:
            yield f"{document} names no `file: symbol`"
        for path, symbol in names:
            if path not in tree:
                yield f"{document}: no file {path}"
            elif not all(re.search(rf"\b{re.escape(part)}\b", tree[path]) for part in symbol.split("::") if part):
                yield f"{document}: no {symbol} in {path}"


def test_ids(tree):
    """Nothing that processes share is named by a process id: each sandbox and each container has its own, with the same ones."""
    of_kind = {
        (".h", ".cc"): (r"(StrCat|to_string)\(.*\bgetpid\(", "UniqueId (tests/support/unique_id.h)"),
        (".py",): (r"\{os\.getpid\(\)", "tempfile or secrets.token_hex"),
        (".sh",): (r"\$\$(?!\w)", "mktemp"),
    }
    for endings, (pattern, instead) in of_kind.items():
        for path, number, line in _lines(tree, endings):
            ours = path.startswith("tests/") and not path.startswith("tests/support/") or endings == (".sh",)
            if ours and re.search(pattern, line):
                yield f"{path}:{number}: {instead} in place of a process id"


def compiler_scratch(tree):
    """nvcc names its files by its process id: each run has a folder of its own."""
    for path, text in sorted(tree.items()):
        if path.endswith(".bzl"):
            for action in re.split(r"ctx\.actions\.run", text)[1:]:
                if "[NVCC]" in action and "TMPDIR=$(mktemp -d)" not in action:
                    yield f"{path}: nvcc without a TMPDIR of its own"


def shell_scripts(tree):
    """Scripts that run by themselves stop at the first error."""
    for path, text in sorted(tree.items()):
        if text.startswith("#!/") and "sh" in text.splitlines()[0] and "set -euo pipefail" not in text:
            yield f"{path}: set -euo pipefail is missing"


REASON_TABLES = ("proto/inference.proto", "docs/clients/README.md")


def error_reasons(tree):
    """Every ErrorInfo.reason of the coordinator has a row in both tables of reasons, and no row is of another."""
    sent = {}
    for path, text in sorted(tree.items()):
        if not path.startswith("coordinator/") or not path.endswith((".h", ".cc")):
            continue
        found = re.findall(r'kReason\w+ = "(\w+)"', text)
        # Strings that look like no reason go: they may hold parentheses.
        text = re.sub(r'"(?![A-Z][A-Z0-9_]+")(?:[^"\\\n]|\\.)*"', "", text)
        for call in re.split(r"\b(?:WithErrorInfo|Add)\(", text)[1:]:  # Add: of FieldErrors
            depth, end = 1, 0
            while depth and end < len(call):
                depth += {"(": 1, ")": -1}.get(call[end], 0)
                end += 1
            found += re.findall(r'"(\w+)"', call[:end])
        sent.update(dict.fromkeys(found, path))
    for path in REASON_TABLES:
        table = tree[path].split("ErrorInfo.reason, with its code")[-1] if path.endswith(".proto") else tree[path]
        rows = set(re.findall(r"^(?://   |\| `)([A-Z][A-Z0-9_]+)(?:`|(?= +[A-Z_]+ ))", table, re.M))
        for reason in sorted(sent.keys() - rows):
            yield f"{path}: no row for the reason {reason} of {sent[reason]}"
        for reason in sorted(rows - sent.keys()):
            yield f"{path}: nothing in the coordinator sends {reason}"


ALL = [
    include_rooms, include_reserved, include_purity, include_paths, pragma_once, head_comment, file_length, no_common,
    file_names, top_level, todo, machine_paths, visibility, life_documents, test_ids, compiler_scratch, shell_scripts,
    error_reasons,
]
