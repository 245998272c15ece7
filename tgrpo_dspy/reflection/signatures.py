"""What the reflecting model is asked, and the form of its answers."""

from __future__ import annotations

import re
from typing import Any

import dspy
from pydantic import BaseModel, Field, field_validator, model_validator

FEWEST_WORDS = 3


class ProposedEdit(BaseModel):
    """A change to the lessons."""

    # As a model writes it, and shown to it as a JSON schema, docstring included: kept short and read leniently. The
    # library decides what is carried out.
    operation: str = "ADD"
    ids: list[str] = Field(default_factory=list)
    lesson: str = ""
    predictor: str = ""

    @model_validator(mode="before")
    @classmethod
    def _by_any_name(cls, value: Any) -> Any:
        """Accept a bare lesson, and the names that models use for the keys."""
        if isinstance(value, str):
            if len(value.split()) < FEWEST_WORDS:
                raise ValueError(f"{value!r} is too short to be a lesson")
            return {"lesson": value}
        if not isinstance(value, dict):
            return value
        given = {str(key).strip().lower(): item for key, item in value.items()}
        return {
            name: next((given[key] for key in keys if given.get(key) not in (None, "")), default)
            for name, keys, default in _KEYS
        }

    @field_validator("operation", "lesson", "predictor", mode="before")
    @classmethod
    def _text(cls, value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    @field_validator("ids", mode="before")
    @classmethod
    def _list(cls, value: Any) -> list[str]:
        items = value if isinstance(value, list | tuple) else [value]
        return [part for item in items for part in re.split(r"[\s,;+&]+|\band\b", str(item)) if part]


_KEYS: tuple[tuple[str, tuple[str, ...], Any], ...] = (
    ("operation", ("operation", "op", "action", "type", "edit"), ""),
    ("ids", ("ids", "id", "lesson_ids", "lesson_id", "experience_id", "targets"), []),
    ("lesson", ("lesson", "text", "new_lesson", "experience", "rule", "content", "new_text", "description"), ""),
    ("predictor", ("predictor", "step", "module"), ""),
)


class FirstLessons(dspy.Signature):
    """A program tried the same examples several times, and a grader scored every attempt.

    Compare the wrong values with the right ones, and the better attempts with the worse. Then state the rules that all
    right answers follow, so that the next attempts succeed on examples nobody has seen yet. A rule is one imperative
    sentence of at most 30 words: it says which field or situation it is about and exactly what to write or do. It
    never mentions an attempt, an example or one of its values. Write one rule for every kind of mistake.
    """

    task: str = dspy.InputField(desc="what the program does")
    attempts: str = dspy.InputField(desc="graded attempts, best first")
    advantage: str = dspy.OutputField(desc="what sets the better attempts apart")
    rules: str = dspy.OutputField(desc="one rule a line")


class ReviseLessons(dspy.Signature):
    """A program that was given lessons tried the same examples several times, and a grader scored every attempt.

    Compare the wrong values with the right ones, and the better attempts with the worse. Then edit the lessons, so
    that the next attempts succeed on examples nobody has seen yet. A lesson is one imperative sentence of at most 30
    words: it says which field or situation it is about and exactly what to write or do. It never mentions an attempt,
    an example or one of its values. ADD a lesson for every mistake that no lesson speaks of. UPDATE a lesson that is
    wrong or too vague to be followed. MERGE lessons that say the same. DELETE a lesson that does harm. KEEP the others.
    """

    task: str = dspy.InputField(desc="what the program does")
    lessons: str = dspy.InputField(desc="lessons so far, with their ids")
    attempts: str = dspy.InputField(desc="graded attempts, best first")
    advantage: str = dspy.OutputField(desc="what sets the better attempts apart")
    edits: list[ProposedEdit] = dspy.OutputField(desc="changes to the lessons")


class FirstLessonsByAgreement(dspy.Signature):
    """A program tried the same examples several times, and nobody knows the right answers.

    Compare what most attempts agree on with what stands alone. Then state the rules that the answers follow which most
    attempts come to, so that the next attempts all come to them, on examples nobody has seen yet. A rule is one
    imperative sentence of at most 30 words: it says which field or situation it is about and exactly what to write or
    do. It never mentions an attempt, an example or one of its values. Write one rule for every kind of difference.
    """

    task: str = dspy.InputField(desc="what the program does")
    attempts: str = dspy.InputField(desc="attempts, those most others agree with first")
    advantage: str = dspy.OutputField(desc="what sets the attempts that agree apart")
    rules: str = dspy.OutputField(desc="one rule a line")


class ReviseLessonsByAgreement(dspy.Signature):
    """A program that was given lessons tried the same examples several times, and nobody knows the right answers.

    Compare what most attempts agree on with what stands alone. Then edit the lessons, so that the next attempts all
    come to the same answers, on examples nobody has seen yet. A lesson is one imperative sentence of at most 30 words:
    it says which field or situation it is about and exactly what to write or do. It never mentions an attempt, an
    example or one of its values. ADD a lesson for every difference that no lesson speaks of. UPDATE a lesson that is
    wrong or too vague to be followed. MERGE lessons that say the same. DELETE a lesson that does harm. KEEP the others.
    """

    task: str = dspy.InputField(desc="what the program does")
    lessons: str = dspy.InputField(desc="lessons so far, with their ids")
    attempts: str = dspy.InputField(desc="attempts, those most others agree with first")
    advantage: str = dspy.OutputField(desc="what sets the attempts that agree apart")
    edits: list[ProposedEdit] = dspy.OutputField(desc="changes to the lessons")


class ReconcileEdits(dspy.Signature):
    """Several changes to a list of lessons overlap or contradict each other. Replace them by the fewest edits that say
    the same: one lesson for each rule, in one imperative sentence of at most 30 words. Where two proposals contradict
    each other, keep the one with more support.
    """

    lessons: str = dspy.InputField(desc="the lessons the proposals are about, with their ids")
    proposals: str = dspy.InputField(desc="proposed changes, with how often each was proposed")
    edits: list[ProposedEdit] = dspy.OutputField(desc="the changes to make instead")


class SummarizeAttempt(dspy.Signature):
    """A program worked on an example in many steps, and a grader judged the outcome.

    Retell the attempt in order, in at most 100 words, for a reader who will compare it with another attempt: what it
    tried, with which tools and arguments, what came back, and the step that decided the outcome. Keep decisive names
    and values word for word, leave out what changed nothing, and give no advice.
    """

    task: str = dspy.InputField(desc="what the program does")
    attempt: str = dspy.InputField(desc="the example and the attempt, step by step")
    summary: str = dspy.OutputField(desc="what happened, in at most 100 words")
