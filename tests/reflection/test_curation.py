"""Curation: a model is asked only where edits overlap or contradict each other."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest

from benchmarks.curation import first_proposal, library, unlike_lessons
from tests.scripted import Shouting, add, edits, exact, examples, reflects
from tgrpo_dspy import Edit, Experience, ExperienceLibrary, LibraryLimits, Reflection, TrainingFreeGRPO, merge
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.reflection.curation import clusters, parts, render_proposals
from tgrpo_dspy.testing import Call, ScriptedEngine

COMMAS, NO_COMMAS = "Write every number with thousands commas.", "Write every number without thousands commas."


class Torn(Shouting):
    """Every reflection call proposes the next of its lessons; it answers curation with ``settled``."""

    def __init__(self, *lessons: str, settled: str) -> None:
        super().__init__()
        self.lessons, self.settled, self.curations = lessons, settled, 0

    def __call__(self, call: Call) -> Any:
        if "proposals" in call.fields:
            self.curations += 1
            return self.settled
        if reflects(call):
            return edits(call, add(self.lessons[(len(self.reflections) - 1) % len(self.lessons)]))
        return {"answer": call.fields["question"].upper() if call.number % 2 else "no"}


def learn(model: Torn) -> CompileReport:
    optimizer = TrainingFreeGRPO(metric=exact, epochs=1, num_threads=1, reflection=Reflection(groups_per_call=1))
    with dspy.context(lm=model.lm()):
        optimizer.compile(dspy.Predict("question -> answer"), trainset=examples(3), verbose=False)
    assert optimizer.report is not None
    return optimizer.report


def test_no_call_where_edits_neither_overlap_nor_contradict() -> None:
    model = Torn("Write dates as YYYY-MM-DD.", "Be brief and polite.", "Name the currency.", settled="never asked")
    assert len(learn(model).library) == 3
    assert model.curations == 0


def test_lessons_that_are_equal_are_joined_without_a_call() -> None:
    model = Torn(COMMAS, settled="never asked")
    (experience,) = learn(model).library
    assert (experience.text, experience.proposed, len(experience.evidence)) == (COMMAS, 3, 3)
    assert model.curations == 0


def test_a_contradiction_is_settled_by_one_call() -> None:
    settled = f"[[ ## edits ## ]]\n{json.dumps([add(NO_COMMAS)])}\n[[ ## completed ## ]]"
    model = Torn(COMMAS, NO_COMMAS, settled=settled)
    (experience,) = learn(model).library
    assert (experience.text, model.curations) == (NO_COMMAS, 1)
    assert len(experience.evidence) == 3


def test_ids_that_a_model_makes_up_for_the_proposals_do_not_lose_the_lesson() -> None:
    invented = {"operation": "MERGE", "ids": ["e7", "e8"], "lesson": NO_COMMAS}
    nothing = {"operation": "DELETE", "ids": ["e9"]}
    settled = f"[[ ## edits ## ]]\n{json.dumps([invented, nothing])}\n[[ ## completed ## ]]"
    report = learn(Torn(COMMAS, NO_COMMAS, settled=settled))
    assert [experience.text for experience in report.library] == [NO_COMMAS]
    assert not report.steps[0].refused


def test_a_curation_that_cannot_be_read_loses_no_edit() -> None:
    report = learn(Torn(COMMAS, NO_COMMAS, settled="I could not decide."))
    assert sorted(e.text for e in report.library) == [COMMAS, NO_COMMAS]


def test_clusters_join_edits_of_one_experience_and_lessons_that_are_nearly_the_same() -> None:
    known = ExperienceLibrary((Experience(id="e1", text=COMMAS), Experience(id="e2", text="Be brief.")))
    proposed = [
        Edit(operation="ADD", text=NO_COMMAS),
        Edit(operation="UPDATE", ids=("e1",), text="Group digits by three."),
        Edit(operation="DELETE", ids=("e2",)),
        Edit(operation="ADD", text="Name the currency."),
    ]
    for order in (proposed, proposed[::-1]):
        found = clusters(order, known, similarity=85)
        assert sorted(len(cluster.edits) for cluster in found) == [1, 1, 2]
        joined = next(cluster for cluster in found if len(cluster.edits) == 2)
        assert {edit.operation for edit in joined.edits} == {"ADD", "UPDATE"}
        assert joined.about == {"e1"}
        assert joined.needs_model
        assert render_proposals(joined.edits) == (
            f"ADD (1 time): {NO_COMMAS}\nUPDATE e1 (1 time): Group digits by three."
        )


def test_a_new_lesson_that_nearly_repeats_an_old_one_needs_the_model_and_one_that_repeats_it_does_not() -> None:
    known = ExperienceLibrary((Experience(id="e1", text=COMMAS),))
    (near,) = clusters([Edit(operation="ADD", text=NO_COMMAS)], known, similarity=85)
    (same,) = clusters([Edit(operation="ADD", text=COMMAS.upper())], known, similarity=85)
    assert (near.needs_model, same.needs_model) == (True, False)


def test_meaning_joins_what_words_do_not() -> None:
    pytest.importorskip("numpy")
    proposed = [Edit(operation="ADD", text="Be brief."), Edit(operation="ADD", text="Use few words.")]

    def embed(texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.1 * len(text)] for text in texts]

    assert len(clusters(proposed, ExperienceLibrary(), similarity=85)) == 2
    assert len(clusters(proposed, ExperienceLibrary(), similarity=85, embed=embed)) == 1


def test_parts_fit_the_prompt_and_lose_nothing() -> None:
    proposed = [Edit(operation="ADD", text=f"Write rule number {n % 40} of the house style.") for n in range(200)]
    (cluster,) = clusters(proposed, ExperienceLibrary(), similarity=60)
    split = parts(cluster, 100)
    assert len(split) > 3
    assert all(len(render_proposals(part.edits)) <= 400 for part in split)
    assert sorted(e.text for part in split for e in part.edits) == sorted(e.text for e in proposed)


def test_two_thousand_edits_against_two_hundred_experiences() -> None:
    apart, overlapping = unlike_lessons(2000, seed=1), [f"Write the sum of column {n} in full." for n in range(200)]
    base, limits = library(unlike_lessons(200, seed=0)), LibraryLimits(experiences=10**6, tokens=10**9)
    engine = ScriptedEngine(first_proposal)
    settings = Reflection(max_prompt_tokens=600)
    done = merge(base, library(apart), lm=engine.lm(), limits=limits, reflection=settings)
    assert (len(done.library), len(engine.calls)) == (2200, 0)

    done = merge(base, library(apart[:1800] + overlapping), lm=engine.lm(), limits=limits, reflection=settings)
    assert len(done.library) == 200 + 1800 + 1
    assert engine.calls and all(len(call.fields["proposals"]) <= 4 * 300 for call in engine.calls)
