#!/usr/bin/env python3
"""What ptxas and the disassembler say of each kernel in one object file, as lines of a table.

usage: kernel_figures.py SOURCE OBJECT PTXAS_LOG DISASSEMBLER_FOLDER OUT

SOURCE is the name of the .cu file in the table; PTXAS_LOG is what nvcc -Xptxas=-v printed. One line a kernel and architecture,
tab-separated, in the order of COLUMNS; bars.py and issue_slots.py read them.
"""

import bisect
import collections
import os
import re
import subprocess
import sys
import tempfile

COLUMNS = [
    "source", "kernel", "architecture",
    # ptxas
    "registers", "stack_bytes", "spill_bytes", "shared_bytes",
    # the code, without NOP and never-predicated instructions
    "instructions", "ldg128", "ldg_narrow", "hmma", "imma", "ldsm", "ldgsts", "preexit", "local",
    # the loop that does the tensor-core work, 0 where there is none: its shortest way round that leaves out no mma and no load
    # of 8 bytes or more, and how many instructions more it is with a scale applied (the fewest FFMA that are not none; after
    # integer products, where each of their sums is a term of a chain, with all these terms)
    "loop_instructions", "loop_hmma", "loop_imma", "loop_alu", "loop_ldg", "loop_closing",
]

Instruction = collections.namedtuple("Instruction", "address opcode target always never")

_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
_TARGET = re.compile(r"\b0x([0-9a-f]+)\s*$")
# The integer and logic pipe, half as wide as the issue slots.
_ALU = {"LOP3", "LOP", "PLOP3", "SHF", "PRMT", "IADD3", "IADD", "VIADD", "ISETP", "SEL", "LEA", "IABS", "FMNMX", "IMNMX",
        "VIMNMX", "FSETP", "FSEL", "BMSK", "SGXT"}


def read_sass(text):
    """{(architecture, mangled name): [Instruction]} of `cuobjdump --dump-sass`."""
    functions = {}
    architecture, code = None, None
    for line in text.splitlines():
        words = line.split()
        if words[:2] == ["code", "for"]:
            architecture = words[2]
        elif words[:2] == ["Function", ":"]:
            code = functions.setdefault((architecture, words[2]), [])
        else:
            match = _LINE.match(line)
            if match and code is not None:
                address, predicate, opcode, operands = match.groups()
                target = _TARGET.search(operands.strip()) if opcode.split(".")[0] == "BRA" else None
                code.append(Instruction(
                    int(address, 16), opcode, int(target.group(1), 16) if target else None,
                    always=predicate is None and "DIV" not in opcode and not re.match(r"\s*!?U?P\d", operands),
                    never=predicate == "@!PT" or opcode == "NOP"))
    return functions


def is_ldg(instruction):
    return instruction.opcode.split(".")[0] == "LDG"


def _count(code, *prefixes):
    return sum(instruction.opcode.split(".")[0] in prefixes for instruction in code)


def _mmas(code):
    return _count(code, "HMMA", "HGMMA", "IMMA", "QMMA")


def main_loop(code):
    """The instructions of the loop that does the tensor-core work.

    A loop is what lies between a backward branch and its target. Of those with mma in them that hold no other such loop it is
    the one with most mma; [] where no loop has any.
    """
    loops = []
    for instruction in code:
        if instruction.target is not None and instruction.target < instruction.address:
            body = [i for i in code if instruction.target <= i.address <= instruction.address]
            if _mmas(body):
                loops.append((instruction.target, instruction.address, body))
    inner = [loop for loop in loops
             if not any(other is not loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)]
    return max((body for _, _, body in inner), key=_mmas, default=[])


def ways_round(loop):
    """{number of FFMA: the shortest way with so many} from the head of the loop to its end, of those with most work.

    Work is mma and global loads of 8 bytes or more: weights and activations, not scales. Inner loops are gone through once. What
    lies outside of the loop's addresses is no way.
    """
    if not loop:
        return {}
    addresses = [instruction.address for instruction in loop]
    work = [_mmas([i]) + (is_ldg(i) and (".64" in i.opcode or ".128" in i.opcode)) for i in loop]
    fma = [_count([i], "FFMA") for i in loop]
    best = [{} for _ in loop]  # FFMA so far -> (work, -instructions, where from)
    best[0][fma[0]] = (work[0], -1, None)
    for at, instruction in enumerate(loop[:-1]):
        following = [] if instruction.always and instruction.opcode.split(".")[0] in ("BRA", "EXIT") else [at + 1]
        if instruction.target is not None and instruction.address < instruction.target <= addresses[-1]:
            following.append(bisect.bisect_left(addresses, instruction.target))
        for there in following:
            for done, (worked, steps, _) in best[at].items():
                reached = (worked + work[there], steps - 1, at)
                other = best[there].get(done + fma[there])
                if other is None or reached[:2] > other[:2]:
                    best[there][done + fma[there]] = reached
    most = max((found[0] for found in best[-1].values()), default=0)
    ways = {}
    for count, found in best[-1].items():
        if found[0] < most:
            continue
        way, at, done = [], len(loop) - 1, count
        while at is not None:
            way.append(loop[at])
            at, done = best[at][done][2], done - fma[at]
        ways[count] = way[::-1]
    return ways


def read_ptxas(text):
    """{(architecture, mangled name): {"registers", "stack_bytes", "spill_bytes", "shared_bytes"}} of -Xptxas=-v."""
    figures, current, name, of_entry = {}, None, None, False
    for line in text.splitlines():
        entry = re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line)
        properties = re.search(r"Function properties for (\w+)", line)
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        used = re.search(r"Used (\d+) registers", line)
        if entry:
            name = entry.group(1)
            current = figures.setdefault((entry.group(2), name), {})
        elif properties:
            of_entry = properties.group(1) == name  # else of a function that it calls
        elif stack and current is not None and of_entry:
            current["stack_bytes"] = int(stack.group(1))
            current["spill_bytes"] = int(stack.group(2)) + int(stack.group(3))
        elif used and current is not None:
            shared = re.search(r"(\d+) bytes smem", line)
            current["registers"] = int(used.group(1))
            current["shared_bytes"] = int(shared.group(1)) if shared else 0
    return figures


def short_name(demangled):
    """The kernel's name with its template arguments, without result, namespaces and parameters."""
    for noise in ("(anonymous namespace)::", "bitshard::cuda::", "bitshard::"):
        demangled = demangled.replace(noise, "")
    demangled = demangled.replace("> >", ">>")
    depth = 0
    for position, letter in enumerate(demangled):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            demangled = demangled[:position]
            break
    return demangled.removeprefix("void ").strip()


def demangle(names):
    """{mangled: short name}."""
    names = sorted(names)
    lines = subprocess.run(["c++filt"], input="\n".join(names), stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(zip(names, map(short_name, lines.splitlines())))


def code_figures(code):
    real = [instruction for instruction in code if not instruction.never]
    ways = ways_round(main_loop(real))
    loop = min(ways.values(), key=len, default=[])
    scaled = [len(way) for count, way in sorted(ways.items()) if count > _count(loop, "FFMA")]
    terms = 4 * _count(loop, "IMMA")
    if terms and terms in ways and not _count(loop, "FFMA"):
        scaled = [len(ways[terms])]
    wide = sum(is_ldg(i) and ".128" in i.opcode for i in real)
    return {
        "instructions": len(real),
        "ldg128": wide,
        "ldg_narrow": sum(map(is_ldg, real)) - wide,
        "hmma": _count(real, "HMMA", "HGMMA", "QMMA"),
        "imma": _count(real, "IMMA"),
        "ldsm": _count(real, "LDSM"),
        "ldgsts": _count(real, "LDGSTS"),
        "preexit": _count(real, "PREEXIT"),  # griddepcontrol.launch_dependents: the emulator runs kernels in order and cannot see it
        "local": _count(real, "LDL", "STL"),
        "loop_instructions": len(loop),
        "loop_hmma": _count(loop, "HMMA", "HGMMA", "QMMA"),
        "loop_imma": _count(loop, "IMMA"),
        "loop_alu": sum(i.opcode.split(".")[0] in _ALU for i in loop),
        "loop_ldg": sum(map(is_ldg, loop)),
        "loop_closing": scaled[0] - len(loop) if scaled else 0,
    }


def table(source, sass, ptxas):
    """[{column: value}], sorted. A kernel that only one of the two knows is an error."""
    if "instructions are serialized" in ptxas:
        sys.exit(f"{source}: ptxas lets wgmma instructions wait for each other, see its log")
    functions, resources = read_sass(sass), read_ptxas(ptxas)
    if set(functions) != set(resources):
        sys.exit(f"{source}: ptxas and cuobjdump name different kernels: {sorted(set(functions) ^ set(resources))}")
    names = demangle({name for _, name in functions})
    rows = [{"source": source, "kernel": names[name], "architecture": architecture, **resources[architecture, name],
             **code_figures(code)} for (architecture, name), code in functions.items()]
    return sorted(rows, key=lambda row: (row["kernel"], row["architecture"]))


def dump_sass(folder, binary):
    """What `cuobjdump --dump-sass` of that folder prints of an object file.

    It has a folder of its own for what it hands to nvdisasm: it names these files by its process id, which in every sandbox is
    the same.
    """
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "PATH": folder + ":" + os.environ.get("PATH", "/usr/bin:/bin"), "TMPDIR": scratch}
        return subprocess.run([os.path.join(folder, "cuobjdump"), "--dump-sass", binary], env=environment,
                              stdout=subprocess.PIPE, text=True, check=True).stdout


def main():
    source, binary, log, folder, out = sys.argv[1:]
    sass = dump_sass(folder, binary)
    with open(log, encoding="utf-8") as file:
        rows = table(source, sass, file.read())
    with open(out, "w", encoding="utf-8") as file:
        for row in rows:
            file.write("\t".join(str(row[column]) for column in COLUMNS) + "\n")


if __name__ == "__main__":
    main()
