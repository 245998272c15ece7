"""Reflection answers as models really get them wrong, and how many of their lessons survive.

Each says whether a person would read the lesson from it. ``python -m benchmarks.malformed`` prints a table by kind of
answer: what the adapter alone parses, and what the reflection module reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import dspy
from dspy.utils.exceptions import AdapterParseError

from tgrpo_dspy.reflection import SemanticAdvantage
from tgrpo_dspy.reflection.parsing import to_edits
from tgrpo_dspy.reflection.signatures import ReviseLessons
from tgrpo_dspy.testing import ScriptedEngine

LESSON = "Write the answer in capital letters."
OTHER = "Mind the house style of the desk."
HEAD = "[[ ## advantage ## ]]\nThe better attempts shout.\n\n[[ ## edits ## ]]\n"
END = "\n\n[[ ## completed ## ]]"


@dataclass(frozen=True)
class Answer:
    """A completion; ``readable`` when a person would find LESSON in it."""

    kind: str
    name: str
    text: str
    readable: bool


PAYLOADS: dict[str, str] = {
    "list": json.dumps([{"operation": "ADD", "lesson": LESSON}]),
    "two in a list": json.dumps([{"operation": "ADD", "lesson": LESSON}, {"operation": "ADD", "lesson": OTHER}]),
    "one object": json.dumps({"operation": "ADD", "lesson": LESSON}),
    "under a key": json.dumps({"edits": [{"operation": "ADD", "lesson": LESSON}]}),
    "by number": json.dumps({"1": {"operation": "ADD", "lesson": LESSON}, "2": {"operation": "ADD", "lesson": OTHER}}),
    "nested lists": json.dumps([[{"operation": "ADD", "lesson": LESSON}], [[{"operation": "ADD", "lesson": OTHER}]]]),
    "bare texts": json.dumps([LESSON, OTHER]),
    "other keys": json.dumps([{"op": "new", "text": LESSON}]),
    "more keys": json.dumps([{"action": "Insert", "rule": LESSON, "why": "it wins", "confidence": 0.9}]),
    "without operation": json.dumps([{"lesson": LESSON}]),
    "ids without operation": json.dumps([{"ids": ["e1"], "lesson": LESSON}]),
    "unknown operation with ids": json.dumps([{"operation": "REWORD", "ids": ["e1"], "lesson": LESSON}]),
    "null ids": json.dumps([{"operation": "ADD", "ids": None, "lesson": LESSON, "predictor": None}]),
    "ids as text": json.dumps([{"operation": "UPDATE", "ids": "e1", "lesson": LESSON}]),
    "ids as number": json.dumps([{"operation": "UPDATE", "id": 1, "lesson": LESSON}]),
    "ids in brackets": json.dumps([{"operation": "UPDATE", "ids": ["[e1]"], "lesson": LESSON}]),
    "lesson as list": json.dumps([{"operation": "ADD", "lesson": [LESSON]}]),
    "merge by text": json.dumps([{"operation": "MERGE", "ids": "e1, e2", "lesson": LESSON}]),
    "unknown id beside a good edit": json.dumps(
        [{"operation": "DELETE", "ids": ["e77"]}, {"operation": "ADD", "lesson": LESSON}]
    ),
    "wrong item beside a good edit": json.dumps([7, None, {"operation": "ADD", "lesson": LESSON}]),
}

WRAPPERS: dict[str, Callable[[str], str]] = {
    "in its field": lambda p: HEAD + p + END,
    "without the last marker": lambda p: HEAD + p,
    "fenced": lambda p: f"{HEAD}```json\n{p}\n```{END}",
    "fenced without a name": lambda p: f"{HEAD}```\n{p}\n```{END}",
    "after prose": lambda p: f"{HEAD}Here are the changes I would make:\n\n{p}{END}",
    "between prose": lambda p: f"{HEAD}Sure!\n{p}\nI hope this helps.{END}",
    "without any field": lambda p: p,
    "prose and no field": lambda p: f"Sure! These are my edits:\n```json\n{p}\n```",
}

DAMAGES: dict[str, Callable[[str], str]] = {
    "trailing commas": lambda p: p.replace("}]", "},]").replace('"}', '",}'),
    "single quotes": lambda p: p.replace('"', "'"),
    "a comment line": lambda p: p.replace("[{", "[ // the first edit\n{", 1),
    "a hash comment": lambda p: p.replace("[{", "[\n# the first edit\n{", 1),
    "no closing bracket": lambda p: p.rstrip("]}"),
    "unquoted keys": lambda p: p.replace('"operation"', "operation").replace('"lesson"', "lesson"),
    "spread over lines": lambda p: p.replace(", ", ",\n   ").replace("{", "{\n"),
    "python literals": lambda p: p.replace("null", "None"),
    "doubled": lambda p: p + "\n" + p,
}

LINES: dict[str, str] = {
    "operation lines": f"ADD: {LESSON}\nADD: {OTHER}",
    "bulleted operation lines": f"- **ADD**: {LESSON}\n- KEEP e1",
    "numbered operation lines": f"1. ADD {LESSON}\n2. DELETE e1",
    "update line": f"UPDATE e1: {LESSON}",
    "update line in brackets": f"UPDATE [e1] -> {LESSON}",
    "merge line": f"MERGE e1 and e2: {LESSON}",
    "key lines": f"operation: ADD\nlesson: {LESSON}",
    "yaml": f"- operation: ADD\n  lesson: {LESSON}\n- operation: ADD\n  lesson: {OTHER}",
    "bullets": f"- {LESSON}\n- {OTHER}",
    "stars": f"* {LESSON}\n* {OTHER}",
    "numbers": f"1) {LESSON}\n2) {OTHER}",
}

HOPELESS: dict[str, str] = {
    "nothing": "",
    "blanks": " \n\t ",
    "no edits": "[]",
    "no object": "{}",
    "null": "null",
    "a number": "42",
    "brackets": "[[[]]]",
    "a refusal": "I cannot help with that.",
    "an echo of the form": "{edits}",
    "a lesson of one word": '[{"operation": "ADD", "lesson": ""}]',
    "an add without a lesson": '[{"operation": "ADD"}]',
    "broken beyond repair": '[{"operation: ADD',
    "markers only": "[[ ## edits ## ]]",
}


def corpus() -> Iterator[Answer]:
    """All answers, each once."""
    for payload, text in PAYLOADS.items():
        for wrapper, wrap in WRAPPERS.items():
            yield Answer(wrapper, f"{payload}, {wrapper}", wrap(text), True)
    for damage, harm in DAMAGES.items():
        for payload in ("list", "two in a list", "under a key", "null ids"):
            yield Answer("damaged JSON", f"{payload}, {damage}", HEAD + harm(PAYLOADS[payload]) + END, True)
    for name, lines in LINES.items():
        for wrapper in ("in its field", "without any field"):
            yield Answer("lines instead of JSON", f"{name}, {wrapper}", WRAPPERS[wrapper](lines), True)
    whole = HEAD + PAYLOADS["two in a list"]
    for cut in range(len(HEAD) + 20, len(whole), 9):
        yield Answer("cut off", f"cut off after {cut} characters", whole[:cut], LESSON in whole[:cut])
    for name, text in HOPELESS.items():
        yield Answer("no lesson in it", f"{name}, in its field", HEAD + text + END, False)
        yield Answer("no lesson in it", f"{name}, alone", text, False)


def adapter_alone(answer: Answer) -> bool:
    """Whether DSPy's chat adapter parses the answer into edits with the lesson."""
    try:
        fields = dspy.ChatAdapter().parse(ReviseLessons, answer.text)
    except AdapterParseError:
        return False
    return any(edit.lesson == LESSON for edit in fields["edits"])


def module(answer: Answer) -> bool:
    """Whether the reflection module reads the lesson, asked once."""
    engine = ScriptedEngine(lambda call: answer.text)
    with dspy.context(lm=engine.lm(cache=False), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        try:
            proposed = SemanticAdvantage(attempts=1)(task="task", lessons="e1: Be brief.", attempts="none").edits
        except AdapterParseError:
            return False
    return any(edit.text == LESSON for edit in to_edits(proposed, ()))


def main() -> None:
    """Print the table."""
    kinds: dict[str, list[Answer]] = {}
    for answer in corpus():
        kinds.setdefault(answer.kind, []).append(answer)
    print("| kind of answer | answers | with a lesson in them | read by the adapter alone | read by the module |")
    print("|---|---|---|---|---|")
    rows = [
        (kind, len(all_), sum(a.readable for a in all_), sum(map(adapter_alone, all_)), sum(map(module, all_)))
        for kind, all_ in kinds.items()
    ]
    for row in [*rows, ("all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True)))]:
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
