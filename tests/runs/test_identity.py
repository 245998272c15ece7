"""What a run is known by: the same in another process, another when anything that decides behaviour is."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import dspy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scripted import Shouting, examples
from tgrpo_dspy.cloning import clone
from tgrpo_dspy.runs.differences import differences
from tgrpo_dspy.runs.hashing import fingerprint
from tgrpo_dspy.runs.identity import (
    describe_adapter,
    describe_callable,
    describe_examples,
    describe_lm,
    describe_program,
)

ROOT = Path(__file__).parents[2]
SIGNATURE = "question -> answer"
NOWHERE = "http://127.0.0.1:9/v1"


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Answer(pydantic.BaseModel):
    text: str
    sure: bool = True


class Sort(dspy.Signature):
    """Sort the letter."""

    letter: str = dspy.InputField(desc="what came in")
    kind: Literal["bill", "letter"] = dspy.OutputField()
    answer: Answer = dspy.OutputField()


class Plain:
    """Has nothing to show but its address."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def same(self, gold: Any, pred: Any) -> bool:
        return vars(self) == vars(pred)


class Array:
    """Shows its ends only, as arrays do."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __repr__(self) -> str:
        return f"Array({self.numbers[0]}, ..., {self.numbers[-1]})"

    def tolist(self) -> list[int]:
        return list(self.numbers)


@dataclass(frozen=True)
class Limits:
    words: int = 3


def look(where: str, times: int = 1) -> str:
    """Look somewhere."""
    return f"nothing {where}" * times


def reward(args: Any, pred: Any) -> float:
    return float(len(pred.answer) > 3)


def at_least(limit: float, *, strict: bool = False) -> Callable[..., bool]:
    def metric(gold: Any, pred: Any, trace: Any = None, *, tolerance: float = 0.1) -> bool:
        return bool(pred.score > limit if strict else pred.score >= limit)

    return metric


def judged(judge: dspy.Module) -> Callable[..., Any]:
    return lambda gold, pred: judge(question=pred.answer).answer == "yes"


class Judge:
    def __init__(self, strictness: int = 1, words: tuple[str, ...] = ("good", "bad")) -> None:
        self.strictness, self.words = strictness, words
        self.lock = threading.Lock()

    def __call__(self, gold: Any, pred: Any) -> bool:
        return pred.answer in self.words

    def grade(self, gold: Any, pred: Any) -> float:
        return self.strictness


class Agent(dspy.Module):
    """Holds one of everything a program may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = dspy.Predict(Sort, temperature=0.3, rollout_id=7)
        self.predict.demos = [dspy.Example(letter="pay me", kind="bill", answer=Answer(text="a bill"))]
        self.predict.lm = quiet_lm(temperature=0.5)
        self.steps = [dspy.ChainOfThought(SIGNATURE), dspy.Predict(SIGNATURE)]
        self.byname = {"first": dspy.Predict(SIGNATURE), 2: [[dspy.Predict(SIGNATURE)]]}
        self.again = self.predict
        self.frozen = dspy.ChainOfThought(SIGNATURE)
        self.frozen._compiled = True
        self.tool = dspy.Tool(look)
        self.limit, self.rate, self.missing, self.text = 3, 0.5, None, "text"
        self.nested = {
            "1": "one",
            "most": float("inf"),
            "list": [1, "two", (3.0, None)],
            "names": {"ada", "bob", "cy", "dee"},
        }
        self.key = lambda question: question in {"ada", "bob", "cy", "dee"}
        self.part = functools.partial(look, times=2)
        self.method = self.answered
        self.cached = functools.lru_cache(look)
        self.limits, self.color, self.kind = Limits(), Color.RED, Answer
        self.client, self.lock = Plain(connection=id(self)), threading.Lock()
        self.judge = Judge()
        self.api_key = "a-key-that-is-nobodys-business"
        self.itself = [self]

    def forward(self, letter: str) -> dspy.Prediction:
        return self.predict(letter=letter)

    def answered(self, letter: str) -> Any:
        return self(letter=letter).answer


def quiet_lm(**kwargs: Any) -> dspy.LM:
    return dspy.LM("openai/gpt-4o-mini", api_key="nobodys-business", api_base=NOWHERE, **kwargs)


def old(make: Callable[..., dspy.Module], **kwargs: Any) -> Callable[[], dspy.Module]:
    """A module that DSPy warns about."""

    def build() -> dspy.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make(SIGNATURE, **kwargs)

    return build


class Compare(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attempt, self.compare = dspy.ChainOfThought(SIGNATURE), dspy.MultiChainComparison(SIGNATURE, M=2)
        self.parallel = dspy.Parallel(num_threads=2)


PROGRAMS: dict[str, Callable[[], dspy.Module]] = {
    "Predict": lambda: dspy.Predict(SIGNATURE),
    "typed": lambda: dspy.Predict(Sort),
    "ChainOfThought": lambda: dspy.ChainOfThought(SIGNATURE),
    "ReAct": lambda: dspy.ReAct(SIGNATURE, tools=[look], max_iters=3),
    "ReActV2": old(dspy.ReActV2, tools=[look]),
    "CodeAct": old(dspy.CodeAct, tools=[look]),
    "ProgramOfThought": old(dspy.ProgramOfThought),
    "RLM": old(dspy.RLM, tools=[look]),
    "BestOfN": lambda: dspy.BestOfN(dspy.Predict(SIGNATURE), N=2, reward_fn=reward, threshold=2.0),
    "Refine": lambda: dspy.Refine(dspy.Predict(SIGNATURE), N=1, reward_fn=reward, threshold=0.5),
    "MultiChainComparison": Compare,
    "Agent": Agent,
}
METRICS: dict[str, Callable[[], Callable[..., Any]]] = {
    "function": lambda: reward,
    "closure": lambda: at_least(0.5),
    "strict closure": lambda: at_least(0.5, strict=True),
    "lambda": lambda: lambda gold, pred: pred.answer in {"ada", "bob", "cy", "dee"},
    "judged": lambda: judged(dspy.ChainOfThought(SIGNATURE)),
    "partial": lambda: functools.partial(look, "here"),
    "object": Judge,
    "method": lambda: Judge().grade,
    "module": lambda: dspy.ChainOfThought("gold, pred -> score: float"),
    "builtin": lambda: max,
    "class": lambda: Judge,
}
FIELDS: dict[str, Any] = {
    "text": "plain",
    "model": Answer(text="a"),
    "image": dspy.Image("data:image/png;base64,iVBORw0KGgo="),
    "plain object": Plain(a=1, inner=Plain(b=[2])),
    "empty object": Plain(),
    "objects": [Plain(a=1), {"deep": Plain(a=2)}],
    "set": {"ada", "bob", "cy", "dee"},
    "array": Array(*range(3000)),
    "enum": Color.RED,
    "float": float("nan"),
    "bytes": b"\xff",
    "surrogate": "\ud800",
    "history": dspy.History(messages=[{"question": "q", "answer": "a"}]),
}


def identities() -> dict[str, str]:
    """Everything described here, once made from nothing."""
    described: dict[str, Any] = {f"program {name}": describe_program(build()) for name, build in PROGRAMS.items()}
    described |= {f"metric {name}": describe_callable(make()) for name, make in METRICS.items()}
    described |= {f"field {name}": describe_examples([dspy.Example(x=value)]) for name, value in FIELDS.items()}
    described |= {"lm": describe_lm(Shouting().lm()), "adapter": describe_adapter(dspy.JSONAdapter())}
    return {name: fingerprint(data) for name, data in described.items()}


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, str]:
    script = "import json; from tests.runs.test_identity import identities; print(json.dumps(identities()))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_everything_is_the_same_in_another_process(elsewhere: dict[str, str]) -> None:
    here = identities()
    assert {name for name in here if here[name] != elsewhere[name]} == set()
    assert len(set(here.values())) == len(here), "two different things look the same"


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_copy_is_the_same_program(kind: str) -> None:
    program = PROGRAMS[kind]()
    described = describe_program(program)
    assert described == json.loads(json.dumps(described, allow_nan=False)), "it must survive a file"
    assert describe_program(PROGRAMS[kind]()) == described
    if kind != "Agent":  # a program with a lock is copied part by part; one that is shared comes out as two
        assert describe_program(clone(program)) == described
        assert describe_program(program.deepcopy()) == described


def test_the_default_of_a_field_counts() -> None:
    def polite(name: str) -> Any:
        fields = {"name": (str, dspy.InputField(default=name)), "greeting": (str, dspy.OutputField())}
        return describe_program(dspy.Predict(dspy.Signature(fields)))

    assert polite("you") == polite("you") != polite("they")


def test_a_class_is_known_by_its_name_and_source_alone() -> None:
    assert set(describe_program(Agent())["self"]["class"]) == {"name", "code"}


def test_every_module_is_described_frozen_and_nested_ones_too() -> None:
    names = set(describe_program(Agent()))
    assert {"self.frozen.predict", "self.byname[2][0][0]", "self.steps[0].predict", "self.byname[first]"} <= names


def test_a_module_that_is_held_twice_is_described_once() -> None:
    described = describe_program(Agent())
    assert (described["self"]["again"], described["self"]["itself"]) == ("-> self.predict", ["-> self"])


def test_what_a_parallel_counts_is_not_part_of_a_program() -> None:
    program = Compare()
    before = describe_program(program)
    program.parallel.error_count = 5
    assert describe_program(program) == before


def test_a_run_leaves_no_mark() -> None:
    program, lm = dspy.Predict(SIGNATURE), Shouting().lm()
    before = describe_program(program), describe_lm(lm)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        program(question="why?")
    program.traces, program.train = [1], [2]
    assert program.history and lm.history
    assert (describe_program(program), describe_lm(lm)) == before


def _set(path: str, value: Any) -> Callable[[Any], None]:
    holder, _, name = path.rpartition(".")

    def change(program: Any) -> None:
        setattr(functools.reduce(getattr, holder.split(".") if holder else [], program), name, value)

    return change


def _retold(program: Agent) -> None:
    program.predict.signature = program.predict.signature.with_instructions("Sort it.")


def _other_field(program: Agent) -> None:
    others = program.predict.signature.delete("letter")
    program.predict.signature = others.prepend("letter", dspy.InputField(desc="what arrived"), str)


def _other_type(program: Agent) -> None:
    program.predict.signature = program.predict.signature.with_updated_fields("kind", type_=Literal["bill", "note"])


def _other_sharing(program: Agent) -> None:
    program.again = deepcopy(program.predict)


def _other_nested_predictor(program: Agent) -> None:
    program.byname[2][0][0].demos = [{"question": "q", "answer": "a"}]


def _set_item(program: Agent) -> None:
    program.predict.demos[0]["kind"] = "letter"


def look_twice(where: str, times: int = 1) -> str:
    """Look somewhere."""
    return look(where, times=times + 1)


CHANGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "instructions": (_retold, "self.predict.signature.instructions"),
    "field description": (_other_field, "self.predict.signature.fields[0].desc"),
    "field type": (_other_type, "self.predict.signature.fields[1].schema"),
    "demo": (_set_item, "self.predict.demos[0].kind"),
    "demo's model": (lambda p: setattr(p.predict.demos[0].answer, "sure", False), "self.predict.demos[0].answer.sure"),
    "one demo more": (lambda p: p.predict.demos.append({}), "self.predict.demos"),
    "nested predictor": (_other_nested_predictor, "self.byname[2][0][0].demos"),
    "config": (lambda p: p.predict.config.update(temperature=0.4), "self.predict.config.temperature"),
    "LM": (lambda p: p.predict.lm.kwargs.update(temperature=0.6), "self.predict.lm.settings.temperature"),
    "LM taken away": (_set("predict.lm", None), "self.predict.lm"),
    "frozen part": (_set("frozen.predict.demos", [{"question": "q"}]), "self.frozen.predict.demos"),
    "sharing": (_other_sharing, "self.again"),
    "number": (_set("limit", 4), "self.limit"),
    "kind of number": (_set("limit", 3.0), "self.limit"),
    "bool for number": (_set("limit", True), "self.limit"),
    "text": (_set("text", "txet"), "self.text"),
    "nothing": (_set("missing", 0), "self.missing"),
    "nested value": (lambda p: p.nested["list"].append(5), "self.nested.list"),
    "set": (lambda p: p.nested["names"].add("eve"), "self.nested.names"),
    "key of another type": (lambda p: p.nested.update({1: p.nested.pop("1")}), "self.nested.(1): added"),
    "lambda": (_set("key", lambda question: question in {"ada", "bob", "cy"}), "self.key.code"),
    "partial": (_set("part", functools.partial(look, times=3)), "self.part.keywords.times"),
    "cached function": (_set("cached", functools.lru_cache(look_twice)), "self.cached.code"),
    "tool": (_set("tool.func", look_twice), "self.tool.function.code"),
    "tool description": (_set("tool.desc", "Look around."), "self.tool.desc"),
    "tool arguments": (lambda p: p.tool.args["where"].update(description="a place"), "self.tool.args.where"),
    "dataclass": (_set("limits", Limits(words=4)), "self.limits.words"),
    "enum": (_set("color", Color.BLUE), "self.color.value"),
    "class": (_set("kind", Color), "self.kind"),
    "client of another class": (_set("client", Limits), "self.client"),
    "callable object": (_set("judge", Judge(strictness=2)), "self.judge.strictness"),
    "attribute added": (_set("more", 1), "self.more: added (1)"),
    "attribute removed": (lambda p: delattr(p, "text"), 'self.text: removed (was "text")'),
    "method replaced": (_set("forward", reward), "self.forward: added"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_program_is_seen_and_named(change: str) -> None:
    make, path = CHANGES[change]
    program = Agent()
    before = describe_program(program)
    make(program)
    assert fingerprint(describe_program(program)) != fingerprint(before)
    assert any(line.startswith(path) for line in differences(before, describe_program(program)))


@pytest.mark.parametrize(
    "change",
    [
        _set("predict.stage", "other"),
        _set("client", Plain(connection=0)),
        _set("lock", threading.Lock()),
        _set("api_key", "another-key-of-somebody"),
        _set("callbacks", [1]),
        lambda p: p.predict.config.update(rollout_id=8),
        lambda p: p.predict.lm.kwargs.update(api_key="another", api_base="http://elsewhere", rollout_id=8),
        lambda p: p.predict.demos.__setitem__(0, dict(p.predict.demos[0])),
    ],
)
def test_what_does_not_decide_behaviour_is_not_seen(change: Callable[[Any], None]) -> None:
    program = Agent()
    before = describe_program(program)
    change(program)
    assert describe_program(program) == before


def test_no_secret_is_in_a_description() -> None:
    class Holder(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.answer = dspy.Predict(SIGNATURE)
            self.answer.lm = quiet_lm(extra_headers={"x-key": "h1-s3cr3t"}, extra_body={"auth_token": "b1-s3cr3t"})
            self.settings = {"password": "p1-s3cr3t", "keys": ["k1-s3cr3t-9"], "url": "https://me:u1-s3cr3t@host"}
            self.call = functools.partial(judged, token="t1-s3cr3t-9")  # type: ignore[call-arg]

    api_key = "c1-s3cr3t"

    def tool(x: str, access_token: str = "d1-s3cr3t") -> str:
        return x + api_key + access_token

    text = json.dumps(
        [describe_program(Holder()), describe_callable(tool), describe_lm(quiet_lm(api_key_2="e1-s3cr3t"))]
    )
    assert "s3cr3t" not in text and "business" not in text and NOWHERE not in text


def test_long_values_are_told_by_their_hash() -> None:
    class Corpus(dspy.Module):
        def __init__(self, middle: str) -> None:
            super().__init__()
            self.documents = ["x" * 5000 + middle + "x" * 5000] * 300

    one, other = describe_program(Corpus("a")), describe_program(Corpus("b"))
    assert len(json.dumps(one)) < 2000
    assert differences(one, other)[0].startswith("self.documents.sha256: ")


FILE = '''
import dspy

class Base(dspy.Module):
    def helper(self):
        return 1

class Program(Base):
    """A program."""
    def forward(self, question):
        return question

def tool(question):
    """A tool."""
    return question
'''


def _module(folder: Path, text: str) -> ModuleType:
    """A module of a fixed name with this text in its file, as after an edit and a new start."""
    folder.mkdir()
    file = folder / "written_by_a_user.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("written_by_a_user", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["written_by_a_user"] = module  # where inspect looks for the file of a class
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("edit", [("return question", "return question + 'x'"), ("return 1", "return 2"), ("", "")])
def test_the_source_of_classes_and_functions_counts(edit: tuple[str, str], tmp_path: Path) -> None:
    described = []
    for name, text in (("before", FILE), ("after", "\n\n# moved down" + FILE.replace(*edit))):
        module = _module(tmp_path / name, text)
        described.append((describe_program(module.Program()), describe_callable(module.tool)))
    (program, tool), (changed_program, changed_tool) = described
    assert (program != changed_program) == (edit[0] != "")
    assert (tool != changed_tool) == (edit[0] == "return question")
    del sys.modules["written_by_a_user"]


def _typed_in(text: str) -> dict[str, Any]:
    """What a text defines when it is run without a file, as in a REPL."""
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, "<typed in>", "exec"), scope)
    return scope


@pytest.mark.parametrize(
    ("edit", "seen"),
    [
        (("return question", "return question + 'x'"), True),
        (("return 1", "return 2"), True),
        (("return 1", "return 1  # one"), False),
        (("def helper(self):", "\n\n    def helper(self):"), False),
        (("def helper", "limit = 3\n    def helper"), True),
        (("def helper", "@staticmethod\n    def other(): return 5\n\n    def helper"), True),
    ],
)
def test_code_without_source_counts(edit: tuple[str, str], seen: bool) -> None:
    before, after = _typed_in(FILE), _typed_in(FILE.replace(*edit))
    assert (describe_program(before["Program"]()) != describe_program(after["Program"]())) == seen
    assert (describe_callable(before["tool"]) != describe_callable(after["tool"])) == (edit[0] == "return question")


def test_a_class_made_in_a_function_counts_with_the_values_it_uses() -> None:
    def make(k: int, m: int) -> dspy.Module:
        class Made(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.answer = dspy.Predict(SIGNATURE)

            def forward(self, question: str) -> Any:
                return self.answer(question=question * k)

            @staticmethod
            def helper() -> int:
                return m

        return Made()

    described = [describe_program(make(k, m)) for k, m in ((1, 1), (1, 1), (2, 1), (1, 2))]
    assert described[0] == described[1] != described[2]
    assert described[0] != described[3]


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "closure": (at_least(0.5), at_least(0.6)),
    "lambdas of one line": (lambda g, p: p.a, lambda g, p: p.b),
    "constants of a lambda": (lambda g, p: p.a > 1, lambda g, p: p.a > 1.0),
    "names of arguments": (lambda gold, pred: pred, lambda gold, answer: answer),
    "type of a constant": (lambda g, p: p.a == 1, lambda g, p: p.a == "1"),
    "lambda in a lambda": (lambda g, p: [x for x in p if x > 1], lambda g, p: [x for x in p if x > 2]),
    "set in a lambda": (lambda g, p: p in {"a", "b"}, lambda g, p: p in {"a", "c"}),
    "default": (lambda g, p, k=1: k, lambda g, p, k=2: k),
    "keyword default": (lambda g, p, *, k=1: k, lambda g, p, *, k=2: k),
    "partial": (functools.partial(look, "here"), functools.partial(look, "there")),
    "function of a partial": (functools.partial(look, "here"), functools.partial(look_twice, "here")),
    "attribute of an object": (Judge(1), Judge(2)),
    "items of an object": (Judge(), Judge(words=("good",))),
    "attribute behind a method": (Judge(1).grade, Judge(2).grade),
    "attribute of an object that is no function": (Plain(a=1).same, Plain(a=2).same),
    "method": (Judge().grade, Judge().__call__),
    "program in a closure": (judged(dspy.Predict(SIGNATURE)), judged(dspy.Predict("question -> answer: bool"))),
    "program": (dspy.Predict(SIGNATURE), dspy.ChainOfThought(SIGNATURE)),
    "builtin": (max, min),
    "class": (Judge, Limits),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_metric_is_known_by_its_code_and_what_it_was_made_with(pair: str) -> None:
    one, other = map(describe_callable, PAIRS[pair])
    assert one != other
    assert one == describe_callable(PAIRS[pair][0])
    json.dumps([one, other])


def test_the_source_around_a_lambda_does_not_count() -> None:
    here: dict[str, Any] = {"metric": lambda g, p: p.answer == g.answer, "epochs": 1}
    there: dict[str, Any] = {"metric": lambda g, p: p.answer == g.answer, "epochs": 2}
    assert describe_callable(here["metric"]) == describe_callable(there["metric"])


def test_what_refers_to_itself_can_be_described() -> None:
    def countdown(n: int) -> int:
        return countdown(n - 1) if n else 0

    loop: list[Any] = [1]
    loop.append(loop)
    judge = Judge()
    judge.call, judge.loop, judge.child = judge.grade, loop, Plain()  # type: ignore[attr-defined]
    unbound = (lambda: later) if judge else None
    for function in (countdown, judge, judge.grade, unbound):
        assert describe_callable(function) == describe_callable(function)  # type: ignore[arg-type]
    later = 1


@pytest.mark.parametrize(
    "kwargs",
    [
        {"temperature": 0.5},
        {"max_tokens": 9},
        {"stop": ["x"]},
        {"stop_token_ids": [1, 2]},
        {"token_budget": 5},
        {"extra_body": {"top_k": 1}},
        {"model_type": "text"},
        {"engine": "litellm"},
    ],
)
def test_settings_of_an_lm_count(kwargs: dict[str, Any]) -> None:
    assert describe_lm(dspy.LM("openai/gpt-4o", **kwargs)) != describe_lm(dspy.LM("openai/gpt-4o"))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"api_key": "k"},
        {"api_base": NOWHERE},
        {"base_url": NOWHERE},
        {"headers": {"a": "b"}},
        {"extra_headers": {"a": "b"}},
        {"aws_session_token": "k"},
        {"vertex_credentials": "k"},
        {"azure_ad_token_provider": reward},
        {"hf_token": "letters"},
        {"client_secret": "k"},
        {"proxy_password": "k"},
        {"rollout_id": 3, "temperature": None},
        {"timeout": 5, "num_retries": 9},
        {"cache": False},
    ],
)
def test_where_an_lm_runs_and_who_pays_do_not(kwargs: dict[str, Any]) -> None:
    assert describe_lm(dspy.LM("openai/gpt-4o", **kwargs)) == describe_lm(dspy.LM("openai/gpt-4o"))


def test_an_lm_is_known_by_its_model_and_engine() -> None:
    assert describe_lm(None) is None
    assert describe_lm(dspy.LM("openai/gpt-4o")) != describe_lm(dspy.LM("openai/gpt-4"))
    assert describe_lm(Shouting().lm()) == describe_lm(Shouting().lm())
    assert describe_lm(dspy.LM("openai/gpt-4o").copy(temperature=None)) == describe_lm(dspy.LM("openai/gpt-4o"))
    assert (describe_lm(Shouting().lm()) or {})["engine"] == "tgrpo_dspy.testing.ScriptedEngine"


def test_an_adapter_is_known_by_its_class_and_settings() -> None:
    class Mine(dspy.ChatAdapter):
        pass

    two_step = dspy.TwoStepAdapter(quiet_lm())
    adapters = (None, dspy.ChatAdapter(), dspy.ChatAdapter(use_json_adapter_fallback=False), Mine(), two_step)
    described = [describe_adapter(adapter) for adapter in adapters]
    assert described[0] == "default"
    assert len({fingerprint(data) for data in described}) == len(described)
    assert "business" not in json.dumps(described)
    assert describe_adapter(dspy.ChatAdapter(callbacks=[1])) == described[1]


LONG = "x" * 5000


@pytest.mark.parametrize(
    "other",
    [
        [dspy.Example(q="a", label=LONG + "b" + LONG).with_inputs("q")],
        [dspy.Example(q="b", label=LONG + "a" + LONG).with_inputs("q")],
        [dspy.Example(q="a", label=LONG + "a" + LONG)],
        [dspy.Example(q="a", label=LONG + "a" + LONG).with_inputs("q", "label")],
        [dspy.Example(q="a", label=LONG + "a" + LONG, more=1).with_inputs("q")],
        [dspy.Example(q="a", label=LONG + "a" + LONG, dspy_uuid=1).with_inputs("q")],
        [dspy.Example(q="a", label=LONG + "a" + LONG).with_inputs("q")] * 2,
        [],
    ],
)
def test_everything_in_the_examples_counts(other: list[dspy.Example]) -> None:
    example = dspy.Example(label=LONG + "a" + LONG, q="a").with_inputs("q")
    assert describe_examples([example]) == describe_examples([example.copy()]) != describe_examples(other)


def test_the_order_of_the_examples_counts() -> None:
    assert describe_examples(examples(3)) != describe_examples(examples(3)[::-1])
    assert describe_examples(examples(3))["count"] == 3


CONTENTS: dict[str, tuple[Any, Any]] = {
    "array": (Array(1, 2, 3), Array(1, 4, 3)),
    "object": (Plain(a=1), Plain(a=2)),
    "model": (Answer(text="a"), Answer(text="a", sure=False)),
    "image": (dspy.Image("https://host/a.png"), dspy.Image("https://host/b.png")),
    "bytes": (b"a", b"b"),
    "number": (1, 1.0),
    "field named like a secret": ({"api_key": "a1-b2-c3-d4"}, {"api_key": "a1-b2-c3-d5"}),
    "none": (None, "None"),
    "object that shows itself": (Path("a"), Path("b")),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_the_content_of_a_field_counts(kind: str) -> None:
    one, other = (describe_examples([dspy.Example(x=value)]) for value in CONTENTS[kind])
    assert one != other
    assert one == describe_examples([dspy.Example(x=deepcopy(CONTENTS[kind][0]))])


def test_differences_are_named_with_both_values() -> None:
    before = {
        "settings": {"group_size": 5, "gone": "x", "same": [1, 2]},
        "text": "same beginning, " * 9 + "one end",
        "list": [{"a": 1}, {"b": 2}],
        "flag": True,
        "grown": [1],
        "word": "日本\ud800",
    }
    now = {
        "settings": {"group_size": 3, "same": (1, 2), "new.key": {"a": None}},
        "text": "same beginning, " * 9 + "another end",
        "list": [{"a": 1}, {"b": 3}],
        "flag": 1,
        "grown": [1, 2],
        "word": "日本",
    }
    assert differences(before, now) == [
        "flag: true -> 1",
        "grown: [1] -> [1, 2]",
        "list[1].b: 2 -> 3",
        'settings.gone: removed (was "x")',
        "settings.group_size: 5 -> 3",
        'settings.new.key: added ({"a": null})',
        'text: …inning, same beginning, same beginning, one end" -> …ng, same beginning, same beginning, another end"',
        'word: "日本\\ud800" -> "日本"',
    ]


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RECORD = st.dictionaries(st.text(), DATA, max_size=3)


@given(RECORD, RECORD)
def test_there_is_a_difference_exactly_when_the_fingerprints_differ(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert bool(differences(one, other)) == (fingerprint(one) != fingerprint(other))
    assert differences(one, json.loads(json.dumps(one))) == []


def test_a_fingerprint_is_the_same_for_ever() -> None:
    assert fingerprint({"b": ["\ud800", 1.5], "a": None}) == fingerprint({"a": None, "b": ["\ud800", 1.5]})
    assert fingerprint({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
