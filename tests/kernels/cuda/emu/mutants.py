"""The mutants of the CUDA kernels: small faults, each at one place of a .cu or .cuh, all of which one source can hold.

A mutant replaces a few characters by others that are the old code or the new as a switch says, so that a program with all
mutants of a file acts as any one of them without being compiled again. Where the language wants a constant (sizes, template
arguments, constexpr) the switch is the word `true`, in a source of that mutant alone.
"""

import bisect
import dataclasses
import os
import re

KERNELS = "kernels/cuda"
SWITCH = "tests/kernels/cuda/emu/mutant_switch.h"

# Kind; where: group 1 is what is replaced; by what. {on}: the switch, true in the mutant; {it}: group 1; {what}: group `what`.
MUTATIONS = [
    ("drop barrier", r"()__syncthreads\(\);", "if (!{on}) "),
    ("drop warp barrier", r"()__syncwarp\(\);", "if (!{on}) "),
    ("drop release", r"()GridRelease\(\);", "if (!{on}) "),
    ("drop acquire", r"()GridAcquire\(\);", "if (!{on}) "),
    ("drop dependency wait", r"()GridDependencyWait\(\);", "if (!{on}) "),
    ("drop copy commit", r"()CpAsyncCommit\(\);", "if (!{on}) "),
    ("weaken copy wait", r"()CpAsyncWait<(?P<what>[^;<>]*)>\(\);", "if ({on}) CpAsyncWait<({what}) + 1>(); else "),
    ("loop < to <=", r"\bfor \([^;{}]*;[^;{}<]*\s(<)\s[^;{}]*;", "< {on} +"),
    ("loop from 1", r"\bfor \(\w+ \w+ = (0);", "({on} ? 1 : 0)"),
    ("halve stride", r"\+= (4|8|16|32|64|128|256|k\w+|blockDim\.x)(?=\))", "{it} / ({on} ? 2 : 1)"),
    ("drop lane guard", r"\bif (\()(?:lane|t|thread|warp|threadIdx\.x)(?: % 32)? == 0\)", "({on} || "),
    ("drop row guard", r"()\bif \([^;{}]*>= [^;{}]*\)\s+return[^;]*;", "if (!{on}) "),
    ("buffer index", r"(?<!&)& (1)\b", "({on} ? 0 : 1)"),
    ("buffer index", r"% (2)\b", "({on} ? 1 : 2)"),
    ("drop rescale", r"\bfmaf\(\w+, ([\w.]+),", "({on} ? 1.0f : {it})"),
    ("off by one", r"(?<=[\w)\]]) [+-] (1)\b(?!\.)", "({on} ? 0 : 1)"),
] + [
    ("fragment index", rf"\b(?:lane|t) {operator} ({right})\b", f"({{on}} ? {wrong} : {{it}})")
    for operator, right, wrong in [("%", 4, 2), ("/", 4, 8), ("%", 8, 4), ("/", 8, 4), ("&", 3, 1), ("&", 7, 3),
                                   (">>", 2, 3), (">>", 3, 2)]
]

_NO_CODE = re.compile(r"//[^\n]*|^[ \t]*#[^\n]*|\bstatic_assert\([^;]*;", re.MULTILINE)
# What a statement has before a place that must be a constant: an array's size, for one.
_CONSTANT = re.compile(r"\b(?:constexpr|template|using)\b|\bSHARED_ARRAY\([^;]*$|"
                       r"^\s*(?!return\b)[\w:<>]+ \w+(?:\[[^\]]*\])*\[[^\]=]*$")
_CONSTEXPR_FUNCTION = re.compile(r"\bconstexpr\b[^;{}=]*\([^;{}]*\)\s*\{")


@dataclasses.dataclass(frozen=True)
class Mutant:
    number: int  # from 1, over all files
    path: str
    kind: str  # "off by one", "off by one #2": of the line's second such place
    line: int
    begin: int  # what it replaces in the file's text
    end: int
    change: str  # by what, with {on} where the switch goes
    constant: bool  # the switch must be one
    code: str  # some code up to the end of the mutant's line, words with one space between

    def place(self):
        return f"{self.path}:{self.line}: {self.kind}"


def _constexpr_bodies(code):
    """(begin, end) of the functions that may be asked for constants."""
    bodies = []
    for match in _CONSTEXPR_FUNCTION.finditer(code):
        depth, at = 1, match.end()
        while depth and at < len(code):
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            at += 1
        bodies.append((match.end(), at))
    return bodies


def _mutants_of(path, text, first_number):
    code = _NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    found = []
    for kind, where, change in MUTATIONS:
        for match in re.finditer(where, code):
            made = change.replace("{it}", match.group(1))
            if "{what}" in made:
                made = made.replace("{what}", match.group("what"))
            found.append((match.start(1), match.end(1), kind, made))
    found.sort()
    bodies = _constexpr_bodies(code)
    line_ends = [match.start() for match in re.finditer(r"\n", code)] + [len(code)]
    mutants, kinds_of_lines = [], {}
    for begin, end, kind, change in found:
        if mutants and begin < mutants[-1].end:
            raise ValueError(f"{path}: '{kind}' and '{mutants[-1].kind}' want the same place: {text[begin:end]}")
        line = bisect.bisect_left(line_ends, begin)
        count = kinds_of_lines[line, kind] = kinds_of_lines.get((line, kind), 0) + 1
        statement = max(code.rfind(character, 0, begin) for character in ";{}") + 1
        mutants.append(Mutant(
            number=first_number + len(mutants),
            path=path,
            kind=kind if count == 1 else f"{kind} #{count}",
            line=line + 1,
            begin=begin,
            end=end,
            change=change,
            constant=(_CONSTANT.search(code[statement:begin]) is not None or
                      any(first <= begin < last for first, last in bodies)),
            code=" ".join(code[max(0, begin - 1000):line_ends[line]].split())))
    return mutants


def find_mutants(root):
    """All of kernels/cuda, in a fixed order."""
    mutants = []
    for name in sorted(os.listdir(os.path.join(root, KERNELS))):
        if name.endswith((".cu", ".cuh")):
            path = f"{KERNELS}/{name}"
            with open(os.path.join(root, path), encoding="utf-8") as file:
                mutants += _mutants_of(path, file.read(), len(mutants) + 1)
    return mutants


def with_mutants(text, mutants):
    """A kernel's text with the edits of `mutants`, each with its switch."""
    parts, at = [], 0
    for mutant in sorted(mutants, key=lambda mutant: (mutant.begin, mutant.end)):
        switch = "true" if mutant.constant else f"BITSHARD_MUTANT({mutant.number})"
        parts += [text[at:mutant.begin], mutant.change.replace("{on}", switch)]
        at = mutant.end
    return "".join(parts) + text[at:]


def write_overlay(root, folder, mutants):
    """The files of `mutants`, with all of them, as folder/kernels/cuda/..."""
    os.makedirs(os.path.join(folder, KERNELS), exist_ok=True)
    for path in sorted({mutant.path for mutant in mutants}):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = with_mutants(file.read(), [mutant for mutant in mutants if mutant.path == path])
        with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
            file.write(f'#include "{SWITCH}"\n#line 1 "{path}"\n{text}')


def includes_of(root, path, seen=None):
    """All files of the kernels' room that `path` includes, itself too."""
    seen = set() if seen is None else seen
    if path not in seen and os.path.exists(os.path.join(root, path)):
        seen.add(path)
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for name in re.findall(r'#include "(kernels/cuda/[^"]*)"', file.read()):
                includes_of(root, name, seen)
    return seen


def equivalent_mutants(table, mutants):
    """Number -> why, of those that a table says to change nothing that a test could see. A line of it has file, kind,
    code, why, with tabs between; `code` ends where the mutant's line ends and begins where it is the only one."""
    why_of, errors = {}, []
    with open(table, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, kind, code, why = line.rstrip("\n").split("\t")
            named = [mutant for mutant in mutants
                     if os.path.basename(mutant.path) == name and mutant.kind == kind and mutant.code.endswith(code)]
            if len(named) == 1:
                why_of[named[0].number] = why
            else:
                errors.append(f"{table}:{number}: {name}: {kind}: {code}: {len(named)} mutants are so" +
                              (": remove the line, or see what the code has become" if not named else
                               ": write more of the code before it"))
    if errors:
        raise ValueError("\n".join(errors))
    return why_of
