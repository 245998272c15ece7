"""An estimate is made without an LM call, and what a run really takes lies in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, add, edits, exact, examples, reflects
from tgrpo_dspy import Sampling, TrainingFreeGRPO
from tgrpo_dspy.errors import ConfigurationError, ProgramError
from tgrpo_dspy.estimation import Estimate, estimate
from tgrpo_dspy.estimation.loads import RunLoad
from tgrpo_dspy.library import Experience, ExperienceLibrary, inject
from tgrpo_dspy.records import Usage
from tgrpo_dspy.runs.events import Event, RolloutFinished
from tgrpo_dspy.sampling.examples import items_of
from tgrpo_dspy.settings import Budget, LibraryLimits, Reflection
from tgrpo_dspy.testing import Call

SIGNATURE = "question -> answer"
PRICED = "openai/gpt-4o-mini"


def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing {where}"


class TwoSteps(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plan, self.write = dspy.Predict("question -> plan"), dspy.ChainOfThought("question, plan -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.write(question=question, plan=self.plan(question=question).plan)


class Hops(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hop, self.answer = dspy.Predict("question -> note"), dspy.Predict("question, notes -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        notes = [self.hop(question=f"{question} {i}").note for i in range(3)]
        return self.answer(question=question, notes=notes)


class Twice(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict(SIGNATURE)

    def forward(self, question: str) -> dspy.Prediction:
        return self.ask(question=question + self.ask(question=question).answer)


class Answering(Shouting):
    """Fills every field a program asks for; looks something up once before an agent finishes."""

    def __call__(self, call: Call) -> dict[str, Any]:
        if reflects(call):
            return edits(call, add())
        question = call.fields.get("question", "")
        right = RULE in call.system or call.number % 3 == 0
        found = "observation_0" in call.user
        values: dict[str, Any] = {
            "answer": question.upper() if right else question,
            "next_tool_name": "finish" if found else "look",
            "next_tool_args": {} if found else {"where": "there"},
        }
        return {name: values.get(name, f"some {name}") for name in call.asks_for}


def guess(student: dspy.Module, **kwargs: Any) -> Estimate:
    defaults: dict[str, Any] = {
        "trainset": examples(4),
        "valset": examples(2, "validation"),
        "group_size": 3,
        "epochs": 1,
        "batch_size": None,
        "limits": LibraryLimits(),
        "reflection": Reflection(),
        "budget": None,
    }
    return estimate(student, **(defaults | kwargs))


def calls_of_a_run(program: dspy.Module) -> tuple[int, int]:
    load = RunLoad(items_of(examples(2), "trainset"), dspy.ChatAdapter(), 0).of(program)
    return load.low.calls, load.high.calls


@pytest.mark.parametrize(
    "make",
    [
        lambda: dspy.Predict(SIGNATURE),
        lambda: dspy.ChainOfThought(SIGNATURE),
        TwoSteps,
        Hops,
        lambda: dspy.ReAct(SIGNATURE, tools=[look], max_iters=4),
    ],
    ids=["Predict", "ChainOfThought", "TwoSteps", "Hops", "ReAct"],
)
def test_what_a_run_really_takes_lies_in_the_estimate(make: Callable[[], dspy.Module]) -> None:
    model = Answering()
    happened: list[Event] = []
    train, val, sizes = examples(5), examples(3, "validation"), {"group_size": 3, "epochs": 2, "batch_size": 2}
    optimizer = TrainingFreeGRPO(
        metric=exact,
        num_threads=2,
        sampling=Sampling(solved_score=None),
        **sizes,  # type: ignore[arg-type]
    )
    with dspy.context(lm=model.lm(model=PRICED)):
        estimated = guess(make(), trainset=train, valset=val, **sizes)
        assert model.engine.calls == []
        optimizer.compile(make(), trainset=train, valset=val, listeners=[happened.append], verbose=False)
    assert optimizer.report is not None
    runs = [event.evaluation for event in happened if isinstance(event, RolloutFinished)]
    used = sum(optimizer.report.usage.values(), Usage())
    assert estimated.steps == len(optimizer.report.steps) == 6
    assert estimated.rollouts == runs.count(False)
    assert len(val) < runs.count(True) <= estimated.evaluations
    assert used.calls == len(model.engine.calls)
    assert estimated.cost is not None
    for (low, high), real in [
        (estimated.lm_calls, used.calls),
        (estimated.prompt_tokens, used.prompt_tokens),
        (estimated.completion_tokens, used.completion_tokens),
        (estimated.cost, used.cost),
    ]:
        assert low <= real <= high


def test_a_program_whose_prompts_are_known_is_estimated_closely() -> None:
    """With nothing to learn, only the length of the answers is open."""
    model = Answering()
    student, train, val = dspy.Predict(SIGNATURE), examples(4), examples(2, "validation")
    optimizer = TrainingFreeGRPO(metric=lambda gold, pred: 1.0, group_size=3, epochs=1)
    with dspy.context(lm=model.lm()):
        estimated = guess(student, trainset=train, valset=val)
        optimizer.compile(student, trainset=train, valset=val, verbose=False)
    assert optimizer.report is not None
    used = sum(optimizer.report.usage.values(), Usage())
    assert estimated.lm_calls[0] == used.calls == 14
    assert 0.7 * used.prompt_tokens < estimated.prompt_tokens[0] <= used.prompt_tokens


def test_steps_rollouts_and_evaluations_follow_from_the_settings() -> None:
    found = guess(dspy.Predict(SIGNATURE), trainset=examples(5), epochs=3, batch_size=2, group_size=4, eval_repeats=2)
    assert (found.steps, found.rollouts, found.evaluations) == (9, 60, 40)
    whole = guess(dspy.Predict(SIGNATURE), trainset=examples(5), epochs=3, valset=None)
    assert (whole.steps, whole.rollouts, whole.evaluations) == (3, 45, 0)


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (lambda: dspy.Predict(SIGNATURE), (1, 1)),
        (lambda: dspy.ChainOfThought(SIGNATURE), (1, 1)),
        (lambda: dspy.MultiChainComparison(SIGNATURE), (1, 1)),
        (TwoSteps, (1, 2)),
        (Twice, (1, 2)),
        (Hops, (1, 6)),
        (lambda: dspy.ReAct(SIGNATURE, tools=[look], max_iters=7), (2, 8)),
        (lambda: dspy.ReActV2(SIGNATURE, tools=[look], max_iters=7), (1, 8)),
        (lambda: dspy.CodeAct(SIGNATURE, tools=[look], max_iters=7), (2, 8)),
        (lambda: dspy.ProgramOfThought(SIGNATURE, max_iters=7), (2, 8)),
        (lambda: dspy.RLM(SIGNATURE, max_iters=7, max_llm_calls=10), (1, 18)),
        (lambda: dspy.BestOfN(TwoSteps(), N=3, reward_fn=exact, threshold=1.0), (1, 6)),
        (lambda: dspy.Refine(dspy.Predict(SIGNATURE), N=3, reward_fn=exact, threshold=1.0), (1, 5)),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_calls_of_a_run_follow_from_the_program(make: Callable[[], dspy.Module], calls: tuple[int, int]) -> None:
    assert calls_of_a_run(make()) == calls


def test_a_part_that_was_compiled_before_runs_too_and_one_that_refers_back_is_not_followed_for_ever() -> None:
    program = TwoSteps()
    program.plan._compiled = True
    program.write.owner = program
    assert calls_of_a_run(program) == (1, 2)


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({"groups_per_call": 1}, 8 * (1 + 4)),
        ({"groups_per_call": 1, "attempts": 3}, 8 * (3 + 4)),
        ({"groups_per_call": 3}, 3 * (1 + 4)),
        # a group takes some 600 tokens: two answers of 300
        ({"max_prompt_tokens": 1400}, 4 * (1 + 4)),
        ({"groups_per_call": 1, "advantage": TwoSteps()}, 8 * (2 + 4)),
    ],
)
def test_reflection_takes_what_its_settings_allow_at_most(settings: dict[str, Any], calls: int) -> None:
    reflection = Reflection(**({"attempts": 1, "max_prompt_tokens": 10**5} | settings))
    found = guess(dspy.Predict(SIGNATURE), trainset=examples(8), reflection=reflection)
    assert found.lm_calls == (24 + 2, 24 + 4 + calls)


def test_an_estimate_needs_no_lm() -> None:
    with dspy.context(lm=None):
        found = guess(dspy.ChainOfThought(SIGNATURE), budget=Budget(max_cost=1.0))
    assert found.cost is None
    assert found.lm_calls[0] == 14
    assert any("max_cost=1 cannot be kept" in warning for warning in found.warnings)


def test_the_cost_needs_the_price_of_every_lm() -> None:
    priced, unpriced = Answering().lm(model=PRICED), Answering().lm()
    with dspy.context(lm=priced):
        found = guess(dspy.Predict(SIGNATURE))
        dearer = guess(dspy.Predict(SIGNATURE), reflection_lm=Answering().lm(model="openai/gpt-4o"))
        assert found.cost is not None and dearer.cost is not None
        assert 0 < found.cost[0] == dearer.cost[0] < found.cost[1] < dearer.cost[1]
        assert guess(dspy.Predict(SIGNATURE), reflection_lm=unpriced).cost is None
        program = TwoSteps()
        program.plan.lm = unpriced
        assert guess(program).cost is None


def test_answers_are_no_longer_than_the_lm_may_write() -> None:
    with dspy.context(lm=Answering().lm(max_tokens=20)):
        found = guess(dspy.Predict(SIGNATURE))
    assert found.completion_tokens[1] == 20 * found.lm_calls[1]


def test_the_library_counts_up_to_its_limit_and_what_the_student_carries_not_twice() -> None:
    student = dspy.Predict(SIGNATURE)
    carrying = inject(student, ExperienceLibrary((Experience(id="e1", text=RULE),)))
    small, large = (guess(student, limits=LibraryLimits(tokens=n)) for n in (100, 1100))
    assert small.prompt_tokens[0] == large.prompt_tokens[0]
    assert large.prompt_tokens[1] - small.prompt_tokens[1] == 1250 * large.lm_calls[1]
    assert guess(carrying, limits=LibraryLimits(tokens=100)) == small


def test_long_inputs_count_as_often_as_they_occur() -> None:
    long = dspy.Example(question="word " * 4000, answer="no").with_inputs("question")
    short, mixed = (guess(dspy.Predict(SIGNATURE), trainset=[*examples(4), *more]) for more in ([], [long]))
    assert mixed.prompt_tokens[0] - short.prompt_tokens[0] == pytest.approx(3 * 0.8 * 5000, rel=0.1)


def test_demonstrations_are_part_of_the_prompt() -> None:
    student = dspy.Predict(SIGNATURE)
    bare = guess(student)
    student.demos = [dspy.Example(question="why? " * 100, answer="because")]
    assert guess(student).prompt_tokens[0] - bare.prompt_tokens[0] > 0.8 * 14 * 125


def test_an_adapter_that_cannot_format_an_example_does_not_end_the_estimate() -> None:
    class Picky(dspy.ChatAdapter):
        def format(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("not like this")

    with dspy.context(adapter=Picky()):
        found = guess(dspy.Predict(SIGNATURE))
    assert 0 < found.prompt_tokens[0] < found.prompt_tokens[1]


def test_what_compile_refuses_is_refused() -> None:
    bare = [dspy.Example(question="why?", answer="because")]
    for name in ("trainset", "valset"):
        with pytest.raises(ConfigurationError, match=rf"{name}\[0\] does not say which of its fields are inputs"):
            guess(dspy.Predict(SIGNATURE), **{name: bare})
        with pytest.raises(ConfigurationError, match=f"{name} must be a non-empty list"):
            guess(dspy.Predict(SIGNATURE), **{name: []})
    with pytest.raises(ProgramError):
        guess(dspy.Module())


def test_a_run_that_can_be_paid_has_no_warnings() -> None:
    with dspy.context(lm=Answering().lm(model=PRICED)):
        found = guess(TwoSteps(), budget=Budget(max_cost=10.0, max_rollouts=10**6, max_lm_calls=10**6, max_seconds=1.0))
    assert found.warnings == ()


def test_a_missing_valset_and_a_loop_are_worth_a_warning() -> None:
    found = guess(Hops(), valset=None)
    assert [warning.split(",")[0] for warning in found.warnings] == [
        "there is no valset",
        "Hops may call its parts in a loop",
    ]


@pytest.mark.parametrize(
    ("budget", "needs"),
    [
        # 2 validation examples, 4 groups of 3, and 2 validation runs of the new library
        (Budget(max_rollouts=13), "max_rollouts=13 is too little for scoring the student and one step"),
        (Budget(max_rollouts=15), "max_rollouts=15 may end the run within its first step, which takes up to 16"),
        (Budget(max_lm_calls=13), "max_lm_calls=13 is too little"),
        (Budget(max_lm_calls=14), "max_lm_calls=14 may end the run"),
        (Budget(max_tokens=100), "max_tokens=100 is too little"),
        (Budget(max_cost=1e-6), "max_cost=1e-06 is too little"),
    ],
)
def test_a_budget_that_is_too_small_for_one_step_is_worth_a_warning(budget: Budget, needs: str) -> None:
    with dspy.context(lm=Answering().lm(model=PRICED)):
        # the whole run is twice as long: only its first step counts
        (warning,) = guess(dspy.Predict(SIGNATURE), epochs=2, budget=budget).warnings
    assert warning.startswith(needs)


def test_an_estimate_reads_as_a_table() -> None:
    found = Estimate(
        rollouts=1500,
        evaluations=40,
        steps=3,
        lm_calls=(1540, 1700),
        prompt_tokens=(200_000, 2_000_000),
        completion_tokens=(5000, 5000),
        cost=(0.0123, 4.5),
        warnings=("too little",),
    )
    assert str(found).splitlines() == [
        "rollouts           1,500",
        "evaluations        40",
        "steps              3",
        "LM calls           1,540 to 1,700",
        "prompt tokens      200,000 to 2,000,000",
        "completion tokens  5,000",
        "cost               $0.012 to $4.50",
        "warning: too little",
    ]
