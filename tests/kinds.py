"""Programs of many kinds, and a model that answers whatever one of them asks for."""

from __future__ import annotations

import random
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.lm15 import Message
from dspy.primitives.code_interpreter import CodeExecutionError, FinalOutput

from tests.scripted import RULE, Shouting, add, edits, exact, examples, reflects
from tgrpo_dspy.testing import Call, ScriptedEngine, tool_call

SIGNATURE = "question -> answer"
_QUESTION = re.compile(r"question number \d+\??")
_FOUND = "nothing there"


class Versatile(Shouting):
    """Answers whatever a program asks for: with the rule in its prompt always right, without it half of the time.

    It counts by question, so that the order in which calls arrive changes nothing.
    """

    def __init__(self, *, native_tools: bool = False) -> None:
        super().__init__()
        self.engine = ScriptedEngine(self, native_tools=native_tools)
        self.asked: Counter[str] = Counter()

    def __call__(self, call: Call) -> dict[str, Any] | Message:
        if reflects(call):
            return edits(call, add())
        question = _QUESTION.findall(call.text)[-1]
        self.asked[question] += 1
        right = RULE in call.system or random.Random(f"{question} {self.asked[question]}").random() < 0.5
        answer = question.upper() if right else question
        has_looked = _FOUND in call.text
        tool, arguments = ("submit", {"answer": answer}) if has_looked else ("look", {"where": "there"})
        if call.request.tools:
            return tool_call(tool, **arguments)
        values: dict[str, Any] = {
            "answer": answer,
            # ReAct
            "next_thought": "done" if has_looked else "look it up",
            "next_tool_name": "finish" if has_looked else "look",
            "next_tool_args": {} if has_looked else arguments,
            # ReActV2
            "tool_calls": {"tool_calls": [{"name": tool, "args": arguments}]},
            # Refine
            "advice": {"self": "try again"},
            # CodeAct, ProgramOfThought, RLM
            "finished": has_looked,
            "generated_code": f"SUBMIT({{'answer': {answer!r}}})" if "error" in call.fields else "print(look('there'))",
            "code": f"SUBMIT(answer={answer!r})" if has_looked else "print(look(where='there'))",
        }
        return {name: values.get(name, "because") for name in call.asks_for}


def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing {where}"


async def look_async(where: str) -> str:
    """Look somewhere."""
    return look(where)


class InProcess:
    """A code interpreter that runs code where it is: DSPy's own start a process for every run."""

    def __init__(self) -> None:
        self.tools: dict[str, Callable[..., Any]] = {}
        self.space: dict[str, Any] = {}

    def start(self) -> None:
        """Nothing to start."""

    def shutdown(self) -> None:
        """Nothing to end."""

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        printed: list[str] = []
        self.space |= {**self.tools, **(variables or {}), "print": printed.append, "SUBMIT": _submit}
        try:
            exec(code, self.space)
        except _SubmittedError as submitted:
            return FinalOutput(submitted.value)
        except Exception as error:
            raise CodeExecutionError(repr(error)) from error
        return "\n".join(printed)


class _SubmittedError(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


def _submit(value: Any = None, **fields: Any) -> None:
    raise _SubmittedError(fields or value)


def _deprecated(make: Callable[[], dspy.Module]) -> dspy.Module:
    """A module that DSPy 3.4 has and 3.5 will not have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return make()


class Loop(dspy.Module):
    """Calls one predictor three times, and the last one counts."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = [dspy.Predict(SIGNATURE)]

    def forward(self, question: str) -> dspy.Prediction:
        for _ in range(2):
            self.steps[0](question=question)
        return self.steps[0](question=question)


class Branch(dspy.Module):
    """Uses one of two predictors and never the other."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = dspy.ChainOfThought(SIGNATURE), dspy.ChainOfThought(SIGNATURE)

    def forward(self, question: str) -> dspy.Prediction:
        return self.used(question=question) if question else self.spare(question=question)


class Parallel(dspy.Module):
    """Asks twice at once and takes the first."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict(SIGNATURE)
        self.parallel = dspy.Parallel(num_threads=2, disable_progress_bar=True)

    def forward(self, question: str) -> dspy.Prediction:
        return self.parallel([(self.ask, {"question": question}), (self.ask, {"question": question + "?"})])[0]


class Compare(dspy.Module):
    """Three attempts, compared by a module that pins its temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.attempt = dspy.ChainOfThought(SIGNATURE)
        self.compare = dspy.MultiChainComparison(SIGNATURE, M=2)

    def forward(self, question: str) -> dspy.Prediction:
        attempts = [self.attempt(question=question) for _ in range(2)]
        return self.compare(attempts, question=question)


class Frozen(dspy.Module):
    """One part was compiled before and is left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.answer = dspy.ChainOfThought(SIGNATURE), dspy.Predict(SIGNATURE)
        self.before._compiled = True

    def forward(self, question: str) -> dspy.Prediction:
        self.before(question=question)
        return self.answer(question=question)


class Twins(dspy.Module):
    """Two predictors of one signature, in a dict, each on an LM of its own when there are two."""

    def __init__(self, *lms: dspy.LM) -> None:
        super().__init__()
        self.parts = {"draft": dspy.Predict(SIGNATURE), "polish": dspy.Predict(SIGNATURE)}
        for predictor, lm in zip(self.parts.values(), lms, strict=bool(lms)):
            predictor.lm = lm

    def forward(self, question: str) -> dspy.Prediction:
        self.parts["draft"](question=question)
        return self.parts["polish"](question=question)


class Client:
    """Something that refuses to be copied."""

    def __deepcopy__(self, memo: dict[int, object]) -> Client:
        raise TypeError("a connection cannot be copied")

    __copy__ = None


class Attached(dspy.Module):
    """Holds what cannot be copied, beside predictors that share a pinned LM, and a tool that is its own method."""

    def __init__(self, lm: dspy.LM | None = None) -> None:
        super().__init__()
        self.lock, self.clients = threading.Lock(), [Client()]
        self.first = dspy.Predict(SIGNATURE)
        self.agent = dspy.ReAct(SIGNATURE, tools=[self.look], max_iters=3)
        if lm is not None:
            self.set_lm(lm)

    def look(self, where: str) -> str:
        """Look somewhere."""
        with self.lock:
            self.first(question="question number 0")
            return look(where)

    def forward(self, question: str) -> dspy.Prediction:
        return self.agent(question=question)


class AsyncOnly(dspy.Module):
    """Can only be awaited, and so can its tool."""

    def __init__(self) -> None:
        super().__init__()
        self.agent = dspy.ReAct(SIGNATURE, tools=[dspy.Tool(look_async, name="look")], max_iters=3)

    async def aforward(self, question: str) -> dspy.Prediction:
        return await self.agent.acall(question=question)


class Rich(dspy.Signature):
    """Answer the question."""

    image: dspy.Image = dspy.InputField()
    history: dspy.History = dspy.InputField()
    tool: dspy.Tool = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def rich_examples(count: int) -> list[dspy.Example]:
    """Examples with an image (of more characters than are ever shown as text), a history and a tool."""
    rich = {
        "image": dspy.Image(f"data:image/png;base64,{'iVBORw0K' * 1000}"),
        "history": dspy.History(messages=[{"question": "What now?", "answer": "NOTHING"}]),
        "tool": dspy.Tool(look),
    }
    return [dspy.Example(**rich, **example).with_inputs(*rich, "question") for example in examples(count)]


async def exact_async(gold: dspy.Example, pred: Any) -> bool:
    return exact(gold, pred)


def long_enough(args: Any, pred: Any) -> float:
    return float(len(pred.answer) > 3)


@dataclass(frozen=True)
class Kind:
    """How to make a program of one kind, for a model that its predictors may pin, and what is to be seen of it.

    Args:
        silent: the predictors that never run.
        unlisted: the names of those that run without being listed: frozen, or made on the fly.
        tools: the tools that run, without those that only hand in the answer.
    """

    program: Callable[[Versatile], dspy.Module]
    silent: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    tools: frozenset[str] = frozenset()
    examples: Callable[[int], list[dspy.Example]] = examples
    metric: Callable[..., Any] = exact
    native_tools: bool = False


_BY_CLASS = frozenset({"Predict"})
_LOOK = frozenset({"look"})

KINDS: dict[str, Kind] = {
    "Predict": Kind(lambda _: dspy.Predict(SIGNATURE)),
    "ChainOfThought": Kind(lambda _: dspy.ChainOfThought(SIGNATURE)),
    "ReAct": Kind(lambda _: dspy.ReAct(SIGNATURE, tools=[look], max_iters=3), tools=_LOOK),
    "ReActV2": Kind(lambda _: dspy.ReActV2(SIGNATURE, tools=[look], max_iters=3), tools=_LOOK),
    "ReActV2 with native calls": Kind(
        lambda _: dspy.ReActV2(SIGNATURE, tools=[look], max_iters=3), tools=_LOOK, native_tools=True
    ),
    # The tools of CodeAct are source code in its interpreter, where no call can be seen.
    "CodeAct": Kind(lambda _: _deprecated(lambda: dspy.CodeAct(SIGNATURE, [look], interpreter_factory=InProcess))),
    "ProgramOfThought": Kind(
        lambda _: _deprecated(lambda: dspy.ProgramOfThought(SIGNATURE, interpreter_factory=InProcess))
    ),
    "RLM": Kind(
        lambda _: dspy.RLM(SIGNATURE, tools=[look], interpreter_factory=InProcess),
        silent=frozenset({"extract"}),
        tools=_LOOK,
    ),
    "BestOfN": Kind(lambda _: dspy.BestOfN(dspy.Predict(SIGNATURE), N=2, reward_fn=long_enough, threshold=2.0)),
    "Refine": Kind(
        lambda _: dspy.Refine(dspy.Predict(SIGNATURE), N=2, reward_fn=long_enough, threshold=2.0), unlisted=_BY_CLASS
    ),
    "MultiChainComparison": Kind(lambda _: Compare()),
    "Parallel": Kind(lambda _: Parallel()),
    "Loop": Kind(lambda _: Loop()),
    "Branch": Kind(lambda _: Branch(), silent=frozenset({"spare.predict"})),
    "Frozen": Kind(lambda _: Frozen(), unlisted=_BY_CLASS),
    "Twins": Kind(lambda _: Twins()),
    "Twins on two LMs": Kind(lambda model: Twins(model.lm(model="test/first"), model.lm(model="test/second"))),
    "Attached": Kind(lambda model: Attached(model.lm(model="test/pinned")), tools=_LOOK),
    "AsyncOnly": Kind(lambda _: AsyncOnly(), tools=_LOOK, metric=exact_async),
    "Image, history and tool": Kind(lambda _: dspy.Predict(Rich), examples=rich_examples),
}
