"""``attribute`` and ``prune``: what they run, what they find, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from pydantic import TypeAdapter

from tests.evaluation.rules import Direct, Ruled, library_of, questions, right
from tgrpo_dspy import (
    Attribution,
    Budget,
    ConfigurationError,
    Experience,
    ExperienceLibrary,
    LibraryError,
    LMUnavailableError,
    MetricError,
    ProgramError,
    Pruned,
    Sampling,
    TrainingFreeGRPO,
    aattribute,
    attribute,
    inject,
    prune,
    read_library,
    strip,
)
from tgrpo_dspy.records import Measured, Usage
from tgrpo_dspy.testing import Call

WORTH = {"Mind rule one.": 0.5, "Mind rule two.": 0.25, "Mind rule three.": 0.0, "Trust hunch one.": -0.25}
LIBRARY = library_of(*WORTH)
SIZE = 16
LEAVE_ONE_OUT = len(LIBRARY) + 2
"""Parts of the library, the full and the empty one among them."""


def model(**settings: Any) -> Ruled:
    """Every question has the same luck in all prompts, so that effects show up exactly."""
    return Ruled(WORTH, base=0.25, alike=True, **settings)


def student() -> dspy.Module:
    return Direct()


def measured(
    ruled: Ruled, library: ExperienceLibrary | None = LIBRARY, *, temperature: float = 0.0, **settings: Any
) -> Attribution:
    arguments = {"evalset": questions(SIZE), "metric": right, "num_threads": 1, **settings}
    with dspy.context(lm=ruled.lm(temperature=temperature)):
        return attribute(arguments.pop("program", None) or student(), library, **arguments)


def pruned(ruled: Ruled, attribution: Attribution, *, temperature: float = 0.0, **settings: Any) -> Pruned[dspy.Module]:
    arguments = {"evalset": questions(SIZE), "metric": right, "num_threads": 1, **settings}
    with dspy.context(lm=ruled.lm(temperature=temperature)):
        return prune(arguments.pop("program", None) or student(), attribution, **arguments)


def without_cache() -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)


# What is run, and what it shows


def test_every_experience_is_left_out_once() -> None:
    ruled = model()
    result = measured(ruled)
    everything = frozenset(e.id for e in LIBRARY)
    assert result.method == "leave_one_out"
    assert [part.ids for part in result.parts[:2]] == [everything, frozenset()]
    assert {part.ids for part in result.parts[2:]} == {everything - {i} for i in everything}
    assert ruled.runs == LEAVE_ONE_OUT * SIZE == result.usage["evaluation"].calls
    assert result.stopped_by is None and result.seconds > 0


def test_effects_are_the_differences_of_the_scores_of_the_parts() -> None:
    result = measured(model())
    mean = {part.ids: part.evaluation.mean for part in result.parts if part.evaluation is not None}
    everything = frozenset(result.effects)
    assert result.full is not None and result.full.mean == mean[everything]
    assert result.empty is not None and result.empty.mean == mean[frozenset()]
    for i, effect in result.effects.items():
        assert effect.mean == pytest.approx(mean[everything] - mean[everything - {i}])
        assert effect.n == SIZE
        assert result.library[i].effect == pytest.approx(effect.mean)
    assert [result.judgements[e.id] for e in LIBRARY] == ["helpful", "helpful", "unclear", "harmful"]


def test_the_program_runs_with_the_lessons_of_a_part_and_no_others() -> None:
    ruled = model()
    measured(ruled, evalset=questions(1))
    held = {frozenset(e.id for e in LIBRARY if e.text in call.text) for call in ruled.engine.calls}
    everything = frozenset(e.id for e in LIBRARY)
    assert held == {everything, frozenset(), *(everything - {i} for i in everything)}


def test_a_compiled_program_is_measured_by_the_library_it_carries_and_is_not_changed() -> None:
    program = inject(student(), LIBRARY)
    before = program.dump_state()
    carried = measured(model(), None, program=program)
    given = measured(model(), LIBRARY, program=strip(program))
    assert carried.effects == given.effects
    assert [part.evaluation for part in carried.parts] == [part.evaluation for part in given.parts]
    assert program.dump_state() == before


def test_its_own_lessons_are_taken_out_when_another_library_is_measured() -> None:
    ruled = model()
    other = library_of("Mind rule one.")
    measured(ruled, other, program=inject(student(), library_of("Trust hunch one.")))
    assert not any("hunch" in call.text for call in ruled.engine.calls)


@pytest.mark.parametrize(("temperature", "repeats", "of_full"), [(0.0, 1, 1), (0.7, 1, 2), (0.7, 2, 4)])
def test_the_full_library_is_run_more_often_when_answers_vary(temperature: float, repeats: int, of_full: int) -> None:
    """Twice as often for four experiences: every effect is a difference from it."""
    ruled = model()
    result = measured(ruled, temperature=temperature, repeats=repeats)
    runs = [{len(r) for r in part.evaluation.repeats} for part in result.parts if part.evaluation]
    assert runs == [{of_full}, *[{repeats}] * (LEAVE_ONE_OUT - 1)]
    assert ruled.runs == SIZE * (of_full + repeats * (LEAVE_ONE_OUT - 1))


def test_a_pinned_temperature_counts_too() -> None:
    program = dspy.Predict("question -> answer", temperature=0.0)
    result = measured(model(), program=program, temperature=0.7, evalset=questions(2))
    assert result.full is not None and {len(r) for r in result.full.repeats} == {1}


@pytest.mark.parametrize("parts", [2, 5, 6, 7])
def test_no_more_runs_than_allowed(parts: int) -> None:
    ruled = model()
    result = measured(ruled, temperature=0.7, budget=Budget(max_rollouts=parts * SIZE + 1))
    assert result.method == "leave_one_out"
    assert ruled.runs == parts * SIZE
    assert result.stopped_by is None


def test_a_small_budget_measures_first_what_is_known_to_do_least() -> None:
    effects = {"e1": 0.1, "e2": -0.2, "e3": None, "e4": -0.1}
    known = ExperienceLibrary(tuple(replace(e, effect=effects[e.id]) for e in LIBRARY))
    result = measured(model(), known, budget=Budget(max_rollouts=4 * SIZE))
    told = [i for i, effect in result.effects.items() if math.isfinite(effect.standard_error)]
    assert told == ["e2", "e4"]
    assert [e.effect for e in result.library][::2] == [0.1, None], "what was not measured keeps what was known"


def test_a_large_budget_buys_shapley_values() -> None:
    ruled = model()
    result = measured(ruled, budget=Budget(max_rollouts=16 * SIZE))
    assert result.method == "shapley"
    assert ruled.runs <= 16 * SIZE
    assert result.full is not None and result.empty is not None
    total = sum(effect.mean for effect in result.effects.values())
    assert total == pytest.approx(result.full.mean - result.empty.mean)


def test_what_a_bound_leaves_unfinished_is_left_out_and_reported() -> None:
    ruled = model()
    result = measured(ruled, budget=Budget(max_lm_calls=4 * SIZE + SIZE // 2))
    assert result.stopped_by == f"budget: max_lm_calls={4 * SIZE + SIZE // 2}"
    assert [part.evaluation is not None for part in result.parts] == [True] * 4 + [False] * 2
    told = [i for i, effect in result.effects.items() if math.isfinite(effect.standard_error)]
    assert told == ["e1", "e2"]
    assert f"Ended early ({result.stopped_by})." in result.to_markdown()
    assert "| e3 | not measured |  | 0 | unclear |" in result.to_markdown()


def test_it_works_inside_a_running_event_loop_and_as_a_coroutine() -> None:
    async def inside() -> Attribution:
        return measured(model())

    async def awaited() -> Attribution:
        with dspy.context(lm=model().lm()):
            return await aattribute(student(), LIBRARY, evalset=questions(SIZE), metric=right, num_threads=1)

    assert asyncio.run(inside()).effects == asyncio.run(awaited()).effects == measured(model()).effects


def test_a_failed_answer_gets_the_failure_score_that_was_asked_for() -> None:
    def broken(call: Call) -> str:
        raise_it = "Mind rule one." in call.text
        return "no form at all" if raise_it else "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"

    ruled = model()
    ruled.engine.respond = broken
    result = measured(
        ruled, program=dspy.Predict("question -> answer"), evalset=questions(2), sampling=Sampling(failure_score=-1.0)
    )
    assert result.effects["e1"].mean == -2.0


# What a second call costs


class Counting:
    """The metric, which counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, gold: Any, pred: Any, trace: Any = None) -> bool:
        self.asked += 1
        return right(gold, pred)


def test_a_second_call_is_answered_by_the_cache_of_dspy() -> None:
    ruled = model()
    first = measured(ruled, temperature=0.7)
    calls = ruled.runs
    second = measured(ruled, temperature=0.7)
    assert (ruled.runs, second.usage) == (calls, {"evaluation": Usage(cached=calls)})
    assert second.effects == first.effects


def test_another_seed_draws_the_repeats_anew() -> None:
    ruled = model()
    measured(ruled, temperature=0.7)
    calls = ruled.runs
    measured(ruled, temperature=0.7, seed=1)
    assert ruled.runs == calls + SIZE, "the second run of the full library"


def test_a_folder_keeps_every_run_for_attribute_and_prune(tmp_path: Path) -> None:
    without_cache()
    ruled, first_metric, second_metric = model(), Counting(), Counting()
    first = measured(ruled, metric=first_metric, run_dir=tmp_path, temperature=0.7)
    calls = ruled.runs
    assert calls == first_metric.asked == SIZE * (LEAVE_ONE_OUT + 1)
    second = measured(ruled, metric=second_metric, run_dir=tmp_path, temperature=0.7)
    assert (ruled.runs, second_metric.asked) == (calls, 0)
    assert (second.effects, second.parts, second.usage) == (first.effects, first.parts, first.usage)
    result = pruned(ruled, first, metric=Counting(), run_dir=tmp_path, temperature=0.7, repeats=1)
    assert [e.id for e in result.dropped] == ["e4"]
    assert ruled.runs == calls, "the library without the one that does harm was among the parts"


def test_a_budget_goes_on_where_the_folder_ends(tmp_path: Path) -> None:
    without_cache()
    ruled = model()
    measured(ruled, run_dir=tmp_path, budget=Budget(max_lm_calls=3 * SIZE))
    whole = measured(ruled, run_dir=tmp_path)
    assert ruled.runs == LEAVE_ONE_OUT * SIZE
    assert whole.effects == measured(model()).effects


def test_a_folder_belongs_to_a_program_and_a_metric(tmp_path: Path) -> None:
    ruled = model()
    measured(ruled, evalset=questions(2), run_dir=tmp_path)
    calls = ruled.runs
    with pytest.raises(ConfigurationError, match="holds another run"):
        measured(ruled, evalset=questions(2), run_dir=tmp_path, metric=lambda gold, pred, trace=None: 1.0)
    with pytest.raises(ConfigurationError, match="program"):
        measured(ruled, evalset=questions(2), run_dir=tmp_path, program=dspy.Predict("question -> answer"))
    assert ruled.runs == calls
    measured(ruled, library_of("Mind rule one."), evalset=questions(3), run_dir=tmp_path)
    measured(ruled, None, evalset=questions(2), run_dir=tmp_path, program=inject(student(), LIBRARY))


def test_an_attribution_can_be_written_and_read_back() -> None:
    codec = TypeAdapter(Attribution)
    result = measured(model())
    assert codec.validate_json(codec.dump_json(result)) == result
    assert json.loads(codec.dump_json(result))["effects"]["e1"]["n"] == SIZE


# The table


def test_the_table_is_sorted_by_effect_and_survives_any_lesson() -> None:
    told = Measured(mean=0.1, standard_error=0.05, n=9)
    texts = ("Write a|b.", "Be brief.", "Guess.")
    result = Attribution(
        library=library_of(*texts),
        effects={
            "e1": told,
            "e2": Measured(mean=0.0, standard_error=math.inf, n=0),
            "e3": Measured(mean=-0.2, standard_error=0.05, n=9),
        },
        method="leave_one_out",
        parts=(),
        usage={},
        seconds=1.0,
    )
    assert result.to_markdown().splitlines() == [
        "Measured by leave one out, 3 experiences: all of them score unknown, none of them unknown.",
        "",
        "| id | effect | standard error | examples | | lesson |",
        "|---|---|---|---|---|---|",
        "| e1 | +0.100 | 0.050 | 9 | helpful | Write a\\|b. |",
        "| e3 | -0.200 | 0.050 | 9 | harmful | Guess. |",
        "| e2 | not measured |  | 0 | unclear | Be brief. |",
    ]
    assert [e.id for e in result.pruned()[0]] == ["e1", "e2"]
    assert result.pruned(level=1e-9)[1] == ()


# What is refused


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"library": None}, "the program carries no experiences"),
        ({"library": ExperienceLibrary()}, "the library has no experiences"),
        ({"evalset": []}, "evalset must be a non-empty list"),
        ({"evalset": [dspy.Example(question="x", answer="y")]}, r"evalset\[0\] does not say .*with_inputs"),
        ({"metric": 3}, "metric must be a function"),
        ({"metric": lambda gold: True}, "signature"),
        ({"repeats": 0}, "repeats=0"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"budget": Budget(max_rollouts=2 * SIZE - 1)}, f"max_rollouts={2 * SIZE - 1}.*takes {2 * SIZE} runs"),
    ],
)
def test_bad_input_is_an_error_before_any_call(arguments: dict[str, Any], says: str) -> None:
    ruled = model()
    with pytest.raises(ConfigurationError, match=says):
        measured(ruled, **arguments)
    assert ruled.engine.calls == []


@pytest.mark.parametrize("function", [attribute, prune])
def test_what_is_no_program_and_what_has_no_lm(function: Any) -> None:
    second = LIBRARY if function is attribute else measured(model())
    with pytest.raises(ProgramError, match=r"must be a dspy\.Module, got function"):
        function(right, second, evalset=questions(1), metric=right)
    with dspy.context(lm=None), pytest.raises(ConfigurationError, match="no LM is configured for predictor predict"):
        function(student(), second, evalset=questions(1), metric=right)


def test_an_experience_for_a_predictor_that_is_not_there() -> None:
    ruled = model()
    with pytest.raises(LibraryError, match="for predictor 'other'"):
        measured(ruled, ExperienceLibrary((Experience(id="e1", text="Be brief.", target="other"),)))
    with pytest.raises(LibraryError, match="for predictor 'predict'"):
        pruned(
            ruled,
            replace(
                with_effects(e4=-0.25), library=ExperienceLibrary(tuple(replace(e, target="predict") for e in LIBRARY))
            ),
            program=dspy.Predict("question -> answer"),
        )
    assert ruled.engine.calls == []


def test_a_metric_that_always_raises_surfaces() -> None:
    with pytest.raises(MetricError, match="ZeroDivisionError"):
        measured(model(), metric=lambda gold, pred, trace=None: 1 / 0)


def failing_after(ruled: Ruled, calls: int) -> None:
    def answer(call: Call) -> Any:
        if call.number >= calls:
            raise RuntimeError("401 no such key")
        return ruled(call)

    ruled.engine.respond = answer


def test_an_lm_that_fails_before_anything_was_measured_is_an_error_and_afterwards_a_report() -> None:
    patient = Sampling(lm_retries=0, max_lm_failures=1)
    ruled = model()
    failing_after(ruled, SIZE)
    with pytest.raises(LMUnavailableError, match="no such key"):
        measured(ruled, evalset=questions(SIZE, 1), sampling=patient)
    ruled = model()
    failing_after(ruled, 3 * SIZE)
    result = measured(ruled, sampling=patient)
    assert result.stopped_by is not None and result.stopped_by.startswith("lm: ")
    assert [i for i, effect in result.effects.items() if math.isfinite(effect.standard_error)] == ["e1"]


# Pruning


def with_effects(**effects: float) -> Attribution:
    """As if the effects had been measured so."""
    known = {e.id: Measured(mean=effects.get(e.id, 0.0), standard_error=0.01, n=20) for e in LIBRARY}
    return Attribution(library=LIBRARY, effects=known, method="leave_one_out", parts=(), usage={}, seconds=0.0)


def test_prune_drops_what_is_harmful_and_reports_both_scores() -> None:
    program = inject(student(), LIBRARY)
    before = program.dump_state()
    result = pruned(model(), with_effects(e4=-0.25), program=program)
    assert [e.id for e in result.dropped] == ["e4"]
    assert [e.id for e in read_library(result.program)] == [e.id for e in result.library] == ["e1", "e2", "e3"]
    assert result.before is not None and result.after is not None
    assert result.after.mean == 1.0 > result.before.mean
    assert result.usage["evaluation"].calls == 2 * SIZE
    assert program.dump_state() == before


def test_prune_leaves_the_program_as_it_is_when_it_scores_worse() -> None:
    program = inject(student(), LIBRARY)
    result = pruned(model(), with_effects(e1=-0.25), program=program)
    assert (result.dropped, result.library) == ((), LIBRARY)
    assert result.program.dump_state() == program.dump_state()
    assert result.before is not None and result.after is not None and result.after.mean < result.before.mean


def test_a_tie_goes_to_the_shorter_library() -> None:
    assert [e.id for e in pruned(model(), with_effects(e3=-0.25)).dropped] == ["e3"]


def test_without_anything_harmful_nothing_is_run() -> None:
    ruled = model()
    result = pruned(ruled, with_effects(e1=0.5, e4=-0.001))
    assert (ruled.runs, result.dropped, result.before, result.after) == (0, (), None, None)
    assert read_library(result.program) == read_library(inject(student(), LIBRARY))


def test_a_level_that_is_stricter_drops_less() -> None:
    unsure = with_effects(e4=-0.025)
    assert [e.id for e in pruned(model(), unsure).dropped] == ["e4"]
    assert pruned(model(), unsure, level=0.01).dropped == ()
    with pytest.raises(ConfigurationError, match=r"level=0\.5"):
        pruned(model(), unsure, level=0.5)
    with pytest.raises(ConfigurationError, match="repeats=0"):
        pruned(model(), unsure, repeats=0)


def test_a_comparison_that_the_budget_ends_drops_nothing() -> None:
    ruled = model()
    result = pruned(ruled, with_effects(e4=-0.25), budget=Budget(max_rollouts=SIZE + 1))
    assert ruled.runs == SIZE + 1
    assert (result.dropped, result.after, result.stopped_by) == ((), None, f"budget: max_rollouts={SIZE + 1}")


def test_an_lm_that_fails_before_the_comparison_is_an_error() -> None:
    ruled = model()
    failing_after(ruled, SIZE + 1)
    with pytest.raises(LMUnavailableError, match="no such key"):
        pruned(ruled, with_effects(e4=-0.25), sampling=Sampling(lm_retries=0, max_lm_failures=1))


def test_both_are_run_as_often_as_the_full_library_was() -> None:
    ruled = model()
    found = measured(ruled, temperature=0.7)
    result = pruned(ruled, found, temperature=0.7)
    assert result.before == found.full
    assert result.after is not None and {len(r) for r in result.after.repeats} == {2}


def test_a_predictor_that_compile_left_alone_stays_so() -> None:
    class Rescued(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.rescue = Direct(), Direct(), dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            self.first(question=question)
            return self.second(question=question)

    few = ExperienceLibrary(tuple(e for e in LIBRARY if e.id in ("e1", "e4")))
    program = inject(Rescued(), LIBRARY, others={"rescue": few})
    result = pruned(model(), with_effects(e4=-0.25), program=program)
    carried = {name: [e.id for e in read_library(p)] for name, p in result.program.named_predictors()}
    assert carried == {"first.predict": ["e1", "e2", "e3"], "second.predict": ["e1", "e2", "e3"], "rescue": ["e1"]}


def test_a_program_that_carries_something_else_gets_the_pruned_library_everywhere() -> None:
    program = inject(student(), library_of("Be brief."))
    result = pruned(model(), with_effects(e4=-0.25), program=program)
    assert [e.id for e in read_library(result.program)] == ["e1", "e2", "e3"]


def test_what_compile_returns_can_be_measured_and_pruned() -> None:
    ruled = Ruled(WORTH, base=0.25, alike=True, proposals=[list(WORTH)])
    optimizer = TrainingFreeGRPO(metric=right, epochs=1, group_size=3, num_threads=1)
    with dspy.context(lm=ruled.lm()):
        compiled = optimizer.compile(student(), trainset=questions(6, 1), verbose=False)
        found = attribute(compiled, evalset=questions(SIZE), metric=right, num_threads=1)
        result = prune(compiled, found, evalset=questions(SIZE), metric=right, num_threads=1)
    assert {e.text for e in read_library(compiled)} == set(WORTH)
    assert [e.text for e in result.dropped] == ["Trust hunch one."]
