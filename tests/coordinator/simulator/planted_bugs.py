"""Plants bugs into a copy of a source file of the coordinator, each behind a switch (planted_bug.h).

usage: planted_bugs.py SOURCE COPY

A bug is a piece of the source and what stands in its place. White space does not count. A piece that is not in the
source exactly once is an error: the code has changed, and the bug must be planted anew.
"""

import os
import re
import sys


def planted(bug, then, otherwise):
    return f"(sim::Planted(sim::PlantedBug::{bug}) ? {then} : {otherwise})"


# file -> [(piece, replacement)]
BUGS = {
    "scheduler.cc": [
        (
            "sequence != nullptr && sequence->slot == row.slot;",
            "sequence != nullptr && " + planted("kLateOutputsCount", "true", "sequence->slot == row.slot") + ";",
        ),
        (
            "running_.erase(victim); LeaveSlot(victim, /*quarantine_blocks=*/false); waiting_.insert(victim);",
            "running_.erase(victim);\n"
            "const bool lost = sim::Planted(sim::PlantedBug::kLostWhenPreempted) && victim->in_flight > 0;\n"
            "LeaveSlot(victim, /*quarantine_blocks=*/false);\n"
            "if (!lost) { waiting_.insert(victim); }",
        ),
        (
            "has_epoch_ = false; in_flight_.clear();",
            "has_epoch_ = false;\nif (!sim::Planted(sim::PlantedBug::kOldPlansStay)) { in_flight_.clear(); }",
        ),
        (
            "PreemptCondemned(); InFlightStep sent",
            "if (!sim::Planted(sim::PlantedBug::kSharersGoOn)) { PreemptCondemned(); }\nInFlightStep sent",
        ),
    ],
    "scheduler_step.cc": [
        (
            "PreemptCondemned();",
            "if (!sim::Planted(sim::PlantedBug::kSharersGoOn)) { PreemptCondemned(); }",
        ),
        (
            "step.tokens += n_tokens;",
            "step.tokens += " + planted("kOutputsCostNothing", "(row.sample ? 0 : n_tokens)", "n_tokens") + ";",
        ),
        (
            "Sequence* last = *running_.rbegin();",
            "Sequence* last = "
            + planted(
                "kFirstIsPreempted",
                "*running_.begin() != sequence ? *running_.begin() : *running_.rbegin()",
                "*running_.rbegin()",
            )
            + ";",
        ),
    ],
    "scheduler_cache.cc": [
        (
            "std::min(sequence->computed, static_cast<uint32_t>(sequence->tokens.size()));",
            "std::min("
            + planted(
                "kKnownTooEarly",
                "static_cast<uint32_t>(sequence->blocks.size()) * limits_.block_tokens",
                "sequence->computed",
            )
            + ", static_cast<uint32_t>(sequence->tokens.size()));",
        ),
        (
            "sequence.cacheable() / limits_.block_tokens",
            planted("kWholePromptCached", "static_cast<uint32_t>(sequence.tokens.size())", "sequence.cacheable()")
            + " / limits_.block_tokens",
        ),
        (
            "sequence.cache_seed,",
            planted("kSaltForgotten", "std::string()", "sequence.cache_seed") + ",",
        ),
        (
            "sequence->cache_seed,",
            planted("kSaltForgotten", "std::string()", "sequence->cache_seed") + ",",
        ),
    ],
    "engine_core.cc": [
        (
            "plans_out_.clear();",
            "if (!sim::Planted(sim::PlantedBug::kPlansStayOut)) { plans_out_.clear(); }",
        ),
    ],
    "loss.cc": [
        (
            "output_->OnGroupLost(term_, epoch_, why);",
            "if (!sim::Planted(sim::PlantedBug::kLossNotTold) || last_step_ >= 16)"
            " { output_->OnGroupLost(term_, epoch_, why); }",
        ),
    ],
    "fair_queue.cc": [
        (
            "if (a->service != b->service) return a->service < b->service; return a->waiting",
            "if (a->service != b->service && !sim::Planted(sim::PlantedBug::kFirstComeFirstServed)) {\n"
            "return a->service < b->service;\n}\nreturn a->waiting",
        ),
    ],
}


def plant(name, text):
    for piece, replacement in BUGS[name]:
        pattern = r"\s*".join(re.escape(word) for word in re.findall(r"\w+|[^\w\s]", piece))
        text, count = re.subn(pattern, lambda _, r=replacement: r, text)
        if count != 1:
            raise SystemExit(f"{name} has this piece {count} times, it should be there once: {piece}")
    return '#include "tests/coordinator/simulator/planted_bug.h"\n' + text


def main():
    source, copy = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    with open(copy, "w", encoding="utf-8") as file:
        file.write(plant(os.path.basename(source), text))


if __name__ == "__main__":
    main()
