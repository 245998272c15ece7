"""Curation at size: thousands of edits against hundreds of experiences, on a scripted model.

``python -m benchmarks.curation`` prints the time without the model, the calls, and the largest prompt. The model merges
whatever it is shown into its first proposal, so that the tree of parts is walked to its end.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time

from tgrpo_dspy import Experience, ExperienceLibrary, LibraryLimits, Reflection, merge
from tgrpo_dspy.testing import Call, ScriptedEngine

_SYLLABLES = ["ka", "lo", "mi", "nu", "pe", "ra", "su", "ti", "vo", "xe", "zu", "bo", "di", "fa", "go", "hu"]


def unlike_lessons(count: int, seed: int) -> list[str]:
    """Lessons of ten made-up words each, none like another."""
    draw = random.Random(seed)
    return [" ".join("".join(draw.choices(_SYLLABLES, k=3)) for _ in range(10)) + "." for _ in range(count)]


def library(lessons: list[str]) -> ExperienceLibrary:
    """A library of these lessons."""
    return ExperienceLibrary(tuple(Experience(id=f"e{n}", text=text) for n, text in enumerate(lessons, start=1)))


def first_proposal(call: Call) -> dict[str, str]:
    """Answers a curation call with the lesson proposed most often."""
    first = call.fields["proposals"].split("\n", 1)[0]
    lesson = re.sub(r"^ADD \(\d+ times?\): ", "", first)
    return {"edits": json.dumps([{"operation": "ADD", "lesson": lesson}])}


def main() -> None:
    """Print a row for edits that do not overlap, and one where a share of them does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curation", description=__doc__)
    parser.add_argument("--edits", type=int, default=2000)
    parser.add_argument("--experiences", type=int, default=200)
    parser.add_argument("--families", type=int, default=20, help="groups of overlapping edits in the second row")
    args = parser.parse_args()
    base = library(unlike_lessons(args.experiences, seed=0))
    apart = unlike_lessons(args.edits, seed=1)
    overlapping = apart[: args.edits // 2]
    for family in range(args.families):
        stem = unlike_lessons(args.families, seed=2)[family].rstrip(".")
        overlapping += [f"{stem} {n}." for n in range(args.edits // 2 // args.families)]
    settings = Reflection(max_prompt_tokens=1000)
    print("| edits | experiences before | after | LM calls | largest prompt, estimated tokens | seconds |")
    print("|---|---|---|---|---|---|")
    for lessons in (apart, overlapping):
        engine = ScriptedEngine(first_proposal)
        started = time.perf_counter()
        limits = LibraryLimits(experiences=10**6, tokens=10**9)
        done = merge(base, library(lessons), lm=engine.lm(cache=False), limits=limits, reflection=settings)
        seconds = time.perf_counter() - started
        largest = max((len(call.fields["proposals"]) // 4 for call in engine.calls), default=0)
        row = (len(lessons), len(base), len(done.library), len(engine.calls), largest, f"{seconds:.1f}")
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
