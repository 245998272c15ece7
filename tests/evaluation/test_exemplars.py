"""Exemplars: the best rollouts as demonstrations, where validation finds them worth their tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import diskcache
import dspy
import pydantic
import pytest

from tests.scripted import RULE, Shouting, add, edits, exact, examples, reflects
from tgrpo_dspy import (
    Budget,
    ConfigurationError,
    LibraryLimits,
    Reflection,
    TrainingFreeGRPO,
    Validation,
    read_library,
)
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.runs.events import RolloutFinished
from tgrpo_dspy.testing import Call, ScriptedEngine
from tgrpo_dspy.views.report import report_to_markdown

Right = Callable[[str, bool, bool], bool]
NO_LABELS = Reflection(learn_from_failures=False)
ADAPTERS = [dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()]


class Pupil(Shouting):
    """Answers in capital letters when ``right`` says so: by the question, whether the rule is there, and an example.

    A training question is answered so every second time it comes, whatever is there.
    """

    def __init__(self, right: Right = lambda *_: False) -> None:
        super().__init__()
        self.right = right
        self.asked: Counter[object] = Counter()

    def __call__(self, call: Call) -> dict[str, str]:
        if reflects(call):
            return edits(call, *self.proposals)
        question = next(iter(call.fields.values()))
        self.asked[question, call.asks_for] += 1
        lucky = question.startswith("question") and self.asked[question, call.asks_for] % 2 == 0
        right = lucky or self.right(question, RULE in call.system, len(call.request.messages) > 1)
        return {name: question.upper() if right else question for name in call.asks_for}


def imitates(question: str, rule: bool, shown: bool) -> bool:
    return shown


def obeys(question: str, rule: bool, shown: bool) -> bool:
    return rule


def needs_both(question: str, rule: bool, shown: bool) -> bool:
    return rule and shown


def learned(
    model: ScriptedEngine | Shouting, student: dspy.Module | None = None, *, exemplars: int = 4, **settings: Any
) -> tuple[Any, CompileReport]:
    settings = {"train": examples(4), "valset": examples(6, "val")} | settings
    of_compile = {name: settings.pop(name) for name in ("valset", "run_dir", "budget", "listeners") if name in settings}
    train, adapter = settings.pop("train"), settings.pop("adapter", None)
    settings = {"metric": exact, "epochs": 1, "group_size": 4, "num_threads": 1} | settings
    optimizer = TrainingFreeGRPO(limits=LibraryLimits(exemplars=exemplars), **settings)
    with dspy.context(lm=model.lm(), adapter=adapter):
        program = student or dspy.Predict("question -> answer")
        compiled = optimizer.compile(program, trainset=train, verbose=False, **of_compile)
    assert optimizer.report is not None
    return compiled, optimizer.report


def chosen(report: CompileReport) -> str:
    (label,) = [choice.label for choice in report.choices if choice.chosen]
    return label


def answer(program: dspy.Module, model: Shouting, question: str = "test") -> Any:
    with dspy.context(lm=model.lm()):
        return program(question=question).answer


def sent(program: dspy.Module, **inputs: Any) -> list[str]:
    """What a program sends to a model that does not answer."""
    engine = ScriptedEngine(lambda call: dict.fromkeys(call.asks_for, "1"))
    with dspy.context(lm=engine.lm(cache=False)):
        program(**inputs)
    return [call.text for call in engine.calls]


def test_a_model_that_follows_examples_but_no_rules_is_shown_an_example() -> None:
    model = Pupil(imitates)
    compiled, report = learned(model)
    scores = {choice.label: choice.score.mean for choice in report.choices if choice.score}
    assert scores == {
        "neither": 0.0,
        "library + 4 exemplars": 1.0,
        "4 exemplars": 1.0,
        "1 exemplar": 1.0,
        "2 exemplars": 1.0,
    }
    assert chosen(report) == "1 exemplar"  # the fewest tokens: the rule does nothing
    (demo,) = compiled.demos
    assert dict(demo.inputs()) == {"question": "question number 0"} and demo.answer == "QUESTION NUMBER 0"
    assert demo.augmented and len(read_library(compiled)) == len(report.library) == 0
    assert answer(compiled, model) == "TEST"
    assert report.student is not None and report.student.mean == 0.0


def test_a_model_that_follows_rules_gets_the_library_alone() -> None:
    model = Pupil(obeys)
    compiled, report = learned(model)
    assert chosen(report) == "library" and report.exemplars == () and compiled.demos == []
    assert report.best_step == 1 and RULE in compiled.signature.instructions
    tokens = {choice.label: choice.prompt_tokens for choice in report.choices}
    assert tokens["library"] < tokens["library + 1 exemplar"] < tokens["library + 4 exemplars"] > tokens["4 exemplars"]
    assert answer(compiled, model) == "TEST"


def test_a_model_that_needs_both_gets_both() -> None:
    model = Pupil(needs_both)
    compiled, report = learned(model)
    assert chosen(report) == "library + 1 exemplar"
    # Alone, the rule does no more than nothing, so that it is not the best library; it is tried beside examples.
    assert report.best_step == 1 and RULE in compiled.signature.instructions
    assert answer(compiled, model) == "TEST"


def test_a_better_score_within_one_standard_error_is_not_worth_its_tokens() -> None:
    def right(question: str, rule: bool, shown: bool) -> bool:
        return rule and (shown or "number 5" not in question)

    _, report = learned(Pupil(right))
    scores = [choice.score.mean for choice in report.choices if choice.score]
    assert scores[:2] == [pytest.approx(5 / 6), 1.0]
    assert chosen(report) == "library"


def test_nothing_that_scores_below_the_student_is_chosen() -> None:
    def spoiled(question: str, rule: bool, shown: bool) -> bool:
        return question.startswith("val") and not shown and not rule

    compiled, report = learned(Pupil(spoiled))
    assert [choice.score.mean for choice in report.choices if choice.score] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert chosen(report) == "neither" and report.best_step == 0 and compiled.demos == []


def test_the_paper_s_last_library_is_not_returned_below_the_student_where_there_are_exemplars() -> None:
    def right(question: str, rule: bool, shown: bool) -> bool:
        return question.startswith("val") and not rule

    _, report = learned(Pupil(right), validation=Validation(acceptance="last"))
    scores = {choice.label: choice.score.mean for choice in report.choices if choice.score}
    assert scores["library"] == 0.0 and chosen(report) == "1 exemplar"


def test_fewer_tokens_do_not_count_below_the_student() -> None:
    def right(question: str, rule: bool, shown: bool) -> bool:
        return question.startswith("val") and (rule or not shown or "number 5" not in question)

    model = Pupil(right)
    model.proposals = (add(f"{RULE} This holds for every answer, be it short or long, be it the first or the last."),)
    _, report = learned(model, validation=Validation(acceptance="last"), exemplars=1)
    tokens = {choice.label: choice.prompt_tokens for choice in report.choices}
    assert tokens["1 exemplar"] < tokens["library"] and chosen(report) == "library"


def test_without_a_validation_set_all_exemplars_stand_beside_the_library() -> None:
    compiled, report = learned(Pupil(obeys), valset=None, exemplars=3)
    assert RULE in compiled.signature.instructions
    assert [demo.question for demo in compiled.demos] == [f"question number {i}" for i in range(3)]
    assert len(report.exemplars) == 3 and report.choices == ()
    assert not any(rollout.demonstrations for group in report.steps[0].groups for rollout in group.rollouts)


def test_without_exemplars_nothing_is_kept_or_measured(tmp_path: Path) -> None:
    seen: list[Any] = []
    model = Pupil(imitates)
    compiled, report = learned(model, exemplars=0, run_dir=tmp_path, listeners=[seen.append])
    assert compiled.demos == [] and (report.exemplars, report.choices) == ((), ())
    assert all(not event.rollout.demonstrations for event in seen if isinstance(event, RolloutFinished))
    assert all(len(call.request.messages) == 1 for call in model.runs)
    assert report.usage["evaluation"].calls == 6 + 6  # the student, and the library of the step
    with diskcache.Cache(str(tmp_path / "store")) as store:
        texts = [str(store[key]) for key in store]
    texts += [path.read_text(encoding="utf-8") for path in tmp_path.glob("*.json") if path.stem != "report"]
    assert len(texts) > 30
    for word in ("demonstrations", "exemplars", "choices"):
        assert all(f'"{word}"' not in text for text in texts)


def test_only_the_best_of_groups_with_contrast_is_shown() -> None:
    class Mixed(Pupil):
        """Fails, succeeds, does both, or gives no answer, by the number in the question."""

        def __call__(self, call: Call) -> Any:
            number = 2 if reflects(call) else int(call.fields["question"][-1])
            return [{"answer": "wrong"}, {"answer": "QUESTION NUMBER 1"}, super().__call__(call), "no answer"][number]

    compiled, report = learned(Mixed(), valset=None, reflection=NO_LABELS)
    assert report.steps[0].informative == 1 and len(report.steps[0].groups) == 4
    assert [(demo.question, demo.answer) for demo in compiled.demos] == [("question number 2", "QUESTION NUMBER 2")]


def test_a_failure_is_never_shown_whatever_its_reward() -> None:
    class Breaking(Pupil):
        """Gives no answer every second time."""

        def __call__(self, call: Call) -> Any:
            given = super().__call__(call)
            return "no answer" if "QUESTION" in str(given.get("answer")) else given

    adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
    compiled, report = learned(
        Breaking(), valset=None, metric=lambda gold, pred: -1.0, adapter=adapter, reflection=NO_LABELS
    )
    assert report.steps[0].informative == 4 and report.exemplars == () and compiled.demos == []


def test_the_higher_reward_is_shown_first_and_a_later_better_rollout_replaces_an_earlier_one() -> None:
    class Learning(Shouting):
        """Gets better from call to call, and is best at the question with the highest number."""

        def __call__(self, call: Call) -> Any:
            if reflects(call):
                return edits(call, *self.proposals)
            return {"answer": f"{call.number:04} {call.fields['question']}"}

    def graded(gold: Any, pred: Any, trace: Any = None) -> float:
        return int(pred.answer[:4]) / 1000 + int(gold.question[-1])

    settings = {"valset": None, "exemplars": 2, "epochs": 3, "train": examples(3), "reflection": NO_LABELS}
    compiled, report = learned(Learning(), metric=graded, **settings)
    assert [demo.question[-1] for demo in compiled.demos] == ["2", "1"]
    assert [exemplar.step for exemplar in report.exemplars] == [3, 3]
    assert all(len(step.exemplars) == 3 for step in report.steps)


def test_validation_data_never_gets_into_a_demo(tmp_path: Path) -> None:
    val = [dspy.Example(question=f"CANARYQ{i}", answer=f"CANARYA{i}").with_inputs("question") for i in range(4)]
    seen: list[Any] = []
    compiled, report = learned(Pupil(imitates), valset=val, listeners=[seen.append], run_dir=tmp_path, exemplars=99)
    kept = json.dumps([demo.toDict() for demo in compiled.demos]) + str([step.exemplars for step in report.steps])
    assert "question number" in kept and "CANARY" not in kept
    evaluated = [event.rollout for event in seen if isinstance(event, RolloutFinished) and event.evaluation]
    assert evaluated and not any(rollout.demonstrations for rollout in evaluated)


def test_the_students_own_demos_stay_and_come_first() -> None:
    student = dspy.Predict("question -> answer")
    student.demos = [dspy.Example(question="mine", answer="MINE")]
    compiled, report = learned(Pupil(), student, valset=None)
    assert [demo.question for demo in compiled.demos] == ["mine", *(f"question number {i}" for i in range(4))]
    assert len(student.demos) == 1
    assert len(report.exemplars) == 4


def test_a_program_that_is_compiled_again_gets_no_exemplar_twice(tmp_path: Path) -> None:
    once, _ = learned(Pupil(obeys), valset=None, exemplars=2)
    once.save(tmp_path / "once.json")
    loaded = dspy.Predict("question -> answer")
    loaded.load(tmp_path / "once.json")
    for program in (once, loaded):
        twice, report = learned(Pupil(), program, valset=None, exemplars=2)
        assert [demo["question"][-1] for demo in twice.demos] == ["0", "1", "2", "3"]
        assert len(report.exemplars) == 2


class TwoSteps(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.Predict("question -> draft")
        self.polish = dspy.ChainOfThought("draft -> answer")
        self.idle = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        self.draft(question=f"first {question}")
        return self.polish(draft=self.draft(question=question).draft)


def test_every_predictor_that_ran_is_shown_its_own_last_call() -> None:
    student = TwoSteps()
    compiled, report = learned(Pupil(), student, valset=None, exemplars=1)
    (draft,), (polish,) = compiled.draft.demos, compiled.polish.predict.demos
    assert dict(draft.inputs()) == {"question": "question number 0"} and draft.draft == polish.draft
    assert polish.answer == "QUESTION NUMBER 0" and polish.reasoning
    assert compiled.idle.demos == [] and compiled.idle.signature is student.idle.signature
    assert [shown.predictor for shown in report.exemplars[0].demonstrations] == ["draft", "polish.predict"]


def test_a_call_that_all_exemplars_share_is_shown_once() -> None:
    class Constant(TwoSteps):
        def forward(self, question: str) -> dspy.Prediction:
            self.draft(question="always the same")
            return self.idle(question=question)

    compiled, report = learned(Pupil(), Constant(), valset=None)
    assert len(report.exemplars) == 4
    assert (len(compiled.draft.demos), len(compiled.idle.demos)) == (1, 4)


def test_frozen_parts_get_no_demos() -> None:
    student = TwoSteps()
    student.polish._compiled = True
    compiled, report = learned(Pupil(), student, valset=None)
    assert report.frozen == ("polish",) and len(compiled.draft.demos) == 4
    assert compiled.polish.predict.demos == []


def test_an_attempt_that_was_not_kept_is_not_shown() -> None:
    def reward(inputs: Any, pred: Any) -> float:
        return float(pred.answer.isupper())

    best = dspy.BestOfN(dspy.Predict("question -> answer"), N=2, reward_fn=reward, threshold=2.0)
    model = Pupil()

    def noisy(gold: Any, pred: Any, trace: Any = None) -> float:
        return float(exact(gold, pred)) + model.engine.calls[-1].number

    compiled, _ = learned(model, best, valset=None, exemplars=1, train=examples(1), metric=noisy)
    assert compiled.module.demos[0].answer == "QUESTION NUMBER 0"


class Person(pydantic.BaseModel):
    name: str
    born: int = pydantic.Field(alias="year", default=0)
    model_config = {"populate_by_name": True}


class Color(Enum):
    RED = "red"


class Read(dspy.Signature):
    """Read a letter."""

    text: str = dspy.InputField()
    pages: list[str] = dspy.InputField()
    notes: str = dspy.InputField()
    kind: Literal["bill", "letter"] = dspy.OutputField()
    dates: list[str] = dspy.OutputField()
    counts: dict[str, int] = dspy.OutputField()
    sender: Person = dspy.OutputField()
    people: list[Person] = dspy.OutputField()
    color: Color = dspy.OutputField()
    share: float = dspy.OutputField()
    paid: bool = dspy.OutputField()
    due: str | None = dspy.OutputField()


def letter(kind: str) -> dict[str, Any]:
    ada = {"name": "Ada", "year": 1815}
    return {
        "kind": kind,
        "dates": ["01-02", "03-04"],
        "counts": {"stamps": 2},
        "sender": ada,
        "people": [ada, {"name": "Émile", "year": 1840}],
        "color": "red",
        "share": 0.5,
        "paid": True,
        "due": "May",
    }


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: type(a).__name__)
def test_typed_values_read_in_the_next_prompt_as_they_were_written(adapter: dspy.Adapter, tmp_path: Path) -> None:
    engine = ScriptedEngine(
        lambda call: edits(call, add()) if reflects(call) else letter("bill" if call.number % 2 else "letter")
    )
    inputs: dict[str, Any] = {"text": "Dear Ada", "pages": ["1", "2"], "notes": ["a note", "another"]}
    train = [dspy.Example(**inputs, kind="bill").with_inputs(*inputs)]
    compiled, _ = learned(
        engine,
        dspy.Predict(Read),
        train=train,
        valset=None,
        adapter=adapter,
        metric=lambda gold, pred: gold.kind == pred.kind,
    )
    ada, emile = Person(name="Ada", born=1815), Person(name="Émile", born=1840)
    typed = letter("bill") | {"sender": ada, "people": [ada, emile], "color": Color.RED}
    demos = [dspy.Example(**inputs, **typed)]
    compiled.save(tmp_path / "read.json")
    loaded = dspy.Predict(Read)
    loaded.load(tmp_path / "read.json")
    for program in (compiled, loaded):
        assert len(program.demos) == 1
        assert adapter.format_demos(Read, program.demos) == adapter.format_demos(Read, demos)
    assert compiled.demos[0].counts == {"stamps": 2} and compiled.demos[0].share == 0.5


@pytest.mark.parametrize(
    "value",
    [
        dspy.Image("data:image/png;base64,iVBO"),
        {"inside": [dspy.Image("data:image/png;base64,iVBO")]},
        dspy.History(messages=[{"question": "a", "answer": "b"}]),
        [dspy.Tool(len, name="len", args={}, arg_types={})],
        object(),
        float("nan"),
        2**70,
        "x" * 20_000,
        ("as a tuple it reads", "unlike a list"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_data_makes_no_demonstration_and_no_harm(value: Any, tmp_path: Path) -> None:
    engine = ScriptedEngine(
        lambda call: edits(call, add()) if reflects(call) else {"answer": "yes" if call.number % 2 else "no"}
    )

    class Asks(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.look = dspy.Predict("thing -> answer")
            self.say = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            self.look(thing=value)
            return self.say(question=question)

    def odd(gold: Any, pred: Any, trace: Any = None) -> bool:
        return len(engine.calls) % 4 == 0

    with dspy.context(warn_on_type_mismatch=False):
        compiled, report = learned(
            engine, Asks(), valset=None, train=examples(2), metric=odd, run_dir=tmp_path / "run", group_size=5
        )
    assert report.steps[0].informative and compiled.look.demos == [] and len(compiled.say.demos) == 2
    compiled.save(tmp_path / "asks.json")


def test_a_saved_program_sends_the_same_bytes(tmp_path: Path) -> None:
    compiled, _ = learned(Pupil(), TwoSteps(), valset=None)
    assert len(compiled.draft.demos) == 4
    compiled.save(tmp_path / "two.json")
    loaded = TwoSteps()
    loaded.load(tmp_path / "two.json")
    assert sent(loaded, question="why?") == sent(compiled, question="why?")


def test_a_finished_run_gives_the_same_program_without_any_call(tmp_path: Path) -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    model = Pupil(needs_both)
    first, one = learned(model, run_dir=tmp_path)
    calls = len(model.engine.calls)
    second, two = learned(model, run_dir=tmp_path)
    assert len(model.engine.calls) == calls and len(first.demos) == 1
    assert second.dump_state() == first.dump_state() and two == one
    _, fresh = learned(Pupil(needs_both))
    assert (fresh.exemplars, fresh.choices) == (one.exemplars, one.choices)


LEARNING = 6 + 4 * 4 + 6


@pytest.mark.parametrize("runs", [LEARNING, LEARNING + 3, LEARNING + 6 + 2])
def test_a_budget_that_ends_the_choice_leaves_what_was_scored_and_a_larger_one_goes_on(
    runs: int, tmp_path: Path
) -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    model = Pupil(needs_both)
    compiled, report = learned(model, run_dir=tmp_path, budget=Budget(max_rollouts=runs))
    scored = [choice.label for choice in report.choices if choice.score is not None]
    assert report.stopped_by == f"budget: max_rollouts={runs}" and len(model.runs) == runs
    assert scored == ["neither", "library + 4 exemplars"][: 1 + (runs - LEARNING) // 6]
    assert chosen(report) == scored[-1]
    assert len(compiled.demos) == 4 * (len(scored) - 1)
    compiled, report = learned(model, run_dir=tmp_path)
    whole, other = learned(Pupil(needs_both))
    assert report.stopped_by is None and compiled.dump_state() == whole.dump_state()
    assert report.choices == other.choices
    assert len(model.runs) == LEARNING + 4 * 6 and report.usage["evaluation"].calls == 6 * 6


def test_agreement_finds_exemplars_without_ground_truth() -> None:
    model = Shouting(add())
    engine = ScriptedEngine(
        lambda call: model(call) if reflects(call) else {"answer": "rare" if call.number % 4 == 0 else "usual"}
    )
    compiled, report = learned(engine, valset=None, use_ground_truth=False, exemplars=1)
    assert compiled.demos[0].answer == "usual" and report.exemplars[0].reward == 0.75


@pytest.mark.parametrize(("exemplars", "scorings"), [(0, 2), (1, 4), (4, 6)])
def test_what_the_choice_runs_is_announced_before(exemplars: int, scorings: int) -> None:
    seen: list[Any] = []
    learned(Pupil(needs_both), listeners=[seen.append], exemplars=exemplars)
    runs = sum(isinstance(event, RolloutFinished) for event in seen)
    assert seen[0].program_runs == runs == 4 * 4 + scorings * 6


def test_the_report_names_the_exemplars_and_what_was_compared() -> None:
    _, report = learned(Pupil(needs_both))
    text = report_to_markdown(report)
    assert "Returned: step 1, with 1 exemplar." in text
    assert "| neither | 0 | 0 | 0.000 ± 0.000 |" in text
    assert "| library + 1 exemplar | 1 | 1 | 1.000 ± 0.000 |" in text and text.count("| chosen |") == 1
    assert "reward 1.00: self(question=question number 0; answer=QUESTION NUMBER 0)" in text


def test_a_negative_number_of_exemplars_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="exemplars=-1"):
        LibraryLimits(exemplars=-1)


class Hopeless(Shouting):
    """Answers right where an example is shown, and never by luck."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*texts)
        self.proposals = ()

    def __call__(self, call: Call) -> dict[str, str]:
        if reflects(call):
            return edits(call)
        question = next(iter(call.fields.values()))
        return {name: question.upper() if len(call.request.messages) > 2 else question for name in call.asks_for}


def test_where_no_attempt_is_right_the_label_is_shown() -> None:
    compiled, report = learned(Hopeless())
    assert report.steps[0].informative == 0 and chosen(report) == "1 exemplar"
    (demo,) = compiled.demos
    assert dict(demo.inputs()) == {"question": "question number 0"} and demo.answer == "QUESTION NUMBER 0"
    assert "augmented" not in demo  # DSPy's mark of what a program wrote itself
    assert report.exemplars[0].labelled and "its label: " in report_to_markdown(report)
    assert answer(compiled, Hopeless()) == "TEST"


def test_a_label_takes_the_place_of_a_better_attempt_that_is_still_wrong() -> None:
    def graded(gold: Any, pred: Any, trace: Any = None) -> float:
        return 1.0 if pred.answer == gold.answer else len(pred.answer) / 100

    class Varying(Hopeless):
        def __call__(self, call: Call) -> dict[str, str]:
            return super().__call__(call) if reflects(call) else {"answer": "x" * (1 + call.number % 3)}

    compiled, report = learned(Varying(), valset=None, metric=graded, exemplars=2)
    assert report.steps[0].informative == 4
    assert [demo.answer for demo in compiled.demos] == ["QUESTION NUMBER 0", "QUESTION NUMBER 1"]


@pytest.mark.parametrize(
    "off", [{"use_ground_truth": False}, {"reflection": NO_LABELS}], ids=["no ground truth", "no failures"]
)
def test_no_label_is_shown_where_labels_are_not_learned_from(off: dict[str, Any]) -> None:
    compiled, report = learned(Hopeless(), valset=None, **off)
    assert report.exemplars == () and compiled.demos == []


def test_a_label_goes_only_to_predictors_whose_inputs_the_example_tells() -> None:
    compiled, _ = learned(Hopeless(), TwoSteps(), valset=None)
    assert compiled.draft.demos == compiled.polish.predict.demos == compiled.idle.demos == []
    compiled, _ = learned(Hopeless(), dspy.ChainOfThought("question -> answer"), valset=None, exemplars=1)
    (demo,) = compiled.predict.demos
    assert demo.toDict() == {"question": "question number 0", "answer": "QUESTION NUMBER 0"}
