"""How much of the prompts of a step a server can reuse: equal beginnings, in the order in which they are asked.

``python -m benchmarks.prefixes`` compiles on a model that answers at once and prints, for every step, the share of the
prompts that is the beginning of an earlier prompt of the step, and of their system messages alone. With ``--local`` it
runs the program of country records on the local model too, once in the order of ``compile`` (the runs of an example
one after another) and once with the examples taking turns, and prints what the server says it reused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, pairwise

import dspy

from benchmarks.latency import answer, items, right, student
from benchmarks.tables import markdown
from programs.country_records.data import splits
from programs.country_records.metric import field_accuracy
from programs.country_records.program import program
from tgrpo_dspy import Experience, ExperienceLibrary, TrainingFreeGRPO, evaluate, inject
from tgrpo_dspy.runs.events import Event, StepStarted
from tgrpo_dspy.testing import Call, ScriptedEngine

_GROUP = 5


@dataclass(frozen=True)
class Shared:
    """What prompts of one kind have in common with earlier ones: parts of 1, by length."""

    kind: str
    prompts: int
    whole: float
    system: float


def shared_in_steps(examples: int, threads: int) -> list[list[Shared]]:
    """Compile once, and see what the prompts of every step share."""
    numbers = count()
    engine, starts = ScriptedEngine(lambda call: answer(call, numbers)), list[int]()

    def step_starts(event: Event) -> None:
        if isinstance(event, StepStarted):
            starts.append(len(engine.calls))

    with dspy.context(lm=engine.lm(cache=False), disable_history=True):
        TrainingFreeGRPO(right, group_size=_GROUP, epochs=1, batch_size=examples // 2, num_threads=threads).compile(
            student(), trainset=items(examples), listeners=[step_starts], verbose=False
        )
    steps = [engine.calls[start:end] for start, end in pairwise([*starts, len(engine.calls)])]
    return [list(_shared(step)) for step in steps]


def _shared(step: Sequence[Call]) -> Iterator[Shared]:
    kinds: dict[str, Callable[[Call], bool]] = {
        "rollouts": lambda call: "item" in call.fields,
        "reflection": lambda call: "attempts" in call.fields,
    }
    for kind, is_one in kinds.items():
        calls = [call for call in step if is_one(call)]
        if len(calls) > 1:
            whole = _reusable([call.text for call in calls])
            yield Shared(kind, len(calls), whole, _reusable([call.system for call in calls]))


def _reusable(texts: Sequence[str]) -> float:
    """The part of all texts but the first that is the beginning of an earlier one."""
    reused = sum(max(_common(text, earlier) for earlier in texts[:i]) for i, text in enumerate(texts) if i)
    return reused / sum(map(len, texts[1:]))


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def reused_by_the_server(examples: int, threads: int) -> dict[str, tuple[int, int]]:
    """Prompt tokens and those reused, on the local model, in the order of ``compile`` and with examples in turns."""
    from programs.local_lm import local_lm

    lm = local_lm(slots=threads, cache=False)
    lesson = Experience(id="e1", text="independence_date: write the date as YYYY-MM-DD.", created=1, changed=1)
    carrying = inject(program(), ExperienceLibrary((lesson,), next_number=2))
    devset = splits(0, train=examples, val=1, test=1, ood=1).train

    def in_groups() -> None:
        evaluate(carrying, devset=devset, metric=field_accuracy, repeats=_GROUP, num_threads=threads)

    def in_turns() -> None:
        def run(example: dspy.Example) -> None:
            with dspy.context(lm=lm, usage_tracker=usage):
                carrying.deepcopy()(**example.inputs())

        usage = dspy.settings.usage_tracker
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, [example for _ in range(_GROUP) for example in devset]))

    return {order.__name__: _tokens(order, lm) for order in (in_groups, in_turns)}


def _tokens(work: Callable[[], None], lm: dspy.LM) -> tuple[int, int]:
    with dspy.context(lm=lm, disable_history=True), dspy.track_usage() as usage:
        work()
    entries = [entry for found in usage.usage_data.values() for entry in found]
    details = [dict(entry.get("prompt_tokens_details") or {}) for entry in entries]
    return sum(entry["prompt_tokens"] for entry in entries), sum(each.get("cached_tokens") or 0 for each in details)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefixes", description=__doc__)
    parser.add_argument("--examples", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--local", type=int, metavar="N", help="examples to run on the local model, five times each")
    args = parser.parse_args(arguments)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    rows = [
        [str(number), shared.kind, str(shared.prompts), f"{shared.whole:.2f}", f"{shared.system:.2f}"]
        for number, step in enumerate(shared_in_steps(args.examples, args.threads), start=1)
        for shared in step
    ]
    print("\n".join(markdown(("step", "prompts", "number", "shared", "shared of system messages"), rows)))
    if args.local:
        print()
        reused = reused_by_the_server(args.local, args.threads)
        told = [[order, f"{all_:,}", f"{cached:,}", f"{cached / all_:.2f}"] for order, (all_, cached) in reused.items()]
        print("\n".join(markdown(("order", "prompt tokens", "reused", "share"), told)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
