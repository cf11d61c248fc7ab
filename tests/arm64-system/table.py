"""Tables of what two systems of `run` wrote to their consoles: table.py ARM64 AMD64."""

import base64
import gzip
import json
import re
import sys

# Stack ends at which no caller is missing (docs/reference/outcomes.md).
COMPLETE = {"complete", "stitched", "alike", "scanned", "lent_frame", "known_callers"}

DEEP = ["main", "run_deep", "deep_outer", *["deep_inner"] * 41, "spin_leaf"]
# For each program: the function that samples must be in to be judged, who is on the way there,
# outermost first, others in between allowed, and what else must be in them to be judged.
RIGHT = {
    "split": ("run_part", ["main", "run_part"]),
    "deep": ("spin_leaf", DEEP),
    "guarded": ("spin_leaf", DEEP),
    "static": ("spin_leaf", DEEP),
    "no-tables": ("spin_leaf", DEEP),
    "pointers": ("spin_leaf", DEEP),
    "thread": ("spin_leaf", ["thread_main", "run_deep", *DEEP[2:]]),
    "signal": (
        "spin_leaf",
        ["main", "run_signal", "interrupted_work", "on_tick", "handler_work", "spin_leaf"],
    ),
    "tiny": ("tiny_leaf", ["main", "run_tiny", "tiny_caller", "tiny_leaf"]),
    "plt": (None, ["main", "run_plt", "plt_caller"]),
    "vfork": ("spin_leaf", ["main", "run_vfork", "child_work", "spin_leaf"]),
    "coroutine": ("spin_leaf", ["coroutine_main", "coroutine_work", "spin_leaf"]),
    "realign": ("spin_leaf", ["main", "run_realign", "realigned", "spin_leaf"]),
    "callers": ("shallow_of_a", ["main", "run_callers", "via_a", *["shared"] * 6, "shallow_of_a"]),
    "orchard": ("squeeze", ["main", "harvest", "squeeze"]),
    # At the innermost of the recursion.
    "orders": ("(*Ledger).Settle", ["nested"] * 25, "nested"),
}


def plain(name):
    """The last word of a function's path: `orchard::press::Press<T>::squeeze` is `squeeze`."""
    return re.sub(r"::h[0-9a-f]{16}$", "", name).replace("main.", "").split("::")[-1]


def is_right(path, wanted):
    rest = iter(path)
    return all(name in rest for name in wanted)


def read(console):
    """What a system wrote: lines of facts, and the recording of each program."""
    facts, recordings, name, text = {}, {}, None, []
    for line in open(console, encoding="utf-8", errors="replace"):
        line = line.strip()
        word, _, value = line.partition(" ")
        if word == "JSON":
            name, text = value, []
        elif word == "END":
            content = gzip.decompress(base64.b64decode("".join(text)))
            if content:
                recordings[name] = json.loads(content)
            name = None
        elif name is not None:
            text.append(line)
        elif word in ("SPLIT", "WAITS", "COST", "Linux"):
            facts[word] = value
    return facts, recordings


def judged(program, recording):
    """Samples; shares of complete stacks, of frames with a name, and of right ones; what is not, by reason."""
    frames = recording["frames"]
    samples = complete = named = counted = right = known = 0
    ends, parts = {}, {}
    leaf, wanted, *needed = RIGHT.get(program, (None, None))
    needed += [leaf] if leaf else []
    for sample in recording["samples"]:
        count, path = sample["count"], [frames[at] for at in sample["frames"]]
        names = [plain(frame["function"]) for frame in path]
        samples += count
        ends[sample["end"]] = ends.get(sample["end"], 0) + count
        complete += count if sample["end"] in COMPLETE else 0
        counted += count * len(path)
        named += count * sum("unnamed" not in frame for frame in path)
        if wanted and all(name in names for name in needed):
            known += count
            right += count if is_right(names, wanted) else 0
        for name in names:
            if name.startswith("spend_"):
                parts[name] = parts.get(name, 0) + count

    def share(part, whole):
        return f"{100 * part / whole:.1f} %" if whole else "–"

    missing = {end: count for end, count in ends.items() if end not in COMPLETE}
    why = ", ".join(f"{end} {count}" for end, count in sorted(missing.items(), key=lambda e: -e[1]))
    return {
        "samples": samples,
        "complete": share(complete, samples),
        "named": share(named, counted),
        "right": share(right, known),
        "why": why,
        "parts": parts,
    }


def main():
    systems = [read(console) for console in sys.argv[1:3]]
    print("| program | samples | complete | named | right | samples | complete | named | right | what is not right |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    programs = [*systems[0][1], *(name for name in systems[1][1] if name not in systems[0][1])]
    for program in programs:
        both = [judged(program, found[program]) if program in found else None for _, found in systems]
        cells = []
        for one in both:
            cells += [str(one[key]) for key in ("samples", "complete", "named", "right")] if one else ["–"] * 4
        why = [f"{arch}: {one['why']}" for arch, one in zip(("arm64", "x86-64"), both) if one and one["why"]]
        print(f"| {program} | {' | '.join(cells)} | {'; '.join(why)} |")
    print()
    print("| split | spent | seen on arm64 | spent | seen on x86-64 |")
    print("|---|---:|---:|---:|---:|")
    columns = []
    for facts, found in systems:
        spent = [int(word) for word in re.findall(r"\d+", facts.get("SPLIT", ""))] or [0, 0, 0]
        seen = judged("split", found["split"])["parts"]
        seen = [seen.get(name, 0) for name in ("spend_seventy", "spend_twenty", "spend_ten")]
        for values in (spent, seen):
            columns.append([f"{100 * value / max(sum(values), 1):.1f} %" for value in values])
    for name, *row in zip(("spend_seventy", "spend_twenty", "spend_ten"), *columns):
        print(f"| {name} | {' | '.join(row)} |")
    print()
    for arch, (facts, _) in zip(("arm64", "x86-64"), systems):
        print(f"{arch}: kernel {facts.get('Linux', '?')}; stacks of waits: {facts.get('WAITS', '?')};"
              f" CPU of the agent in ticks, user and kernel: {facts.get('COST', '?')}")


main()
