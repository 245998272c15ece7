"""Experiences written from the task alone, without a rollout: the paper's ablation, and a starting point."""

from __future__ import annotations

import dspy

from tgrpo_dspy.cloning import require_predictors
from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.reflection.parsing import lines_to_proposals, to_edits
from tgrpo_dspy.reflection.trajectory import render_task
from tgrpo_dspy.settings import LibraryLimits, require


class ImagineLessons(dspy.Signature):
    """Nobody has tried this program yet. From its description alone, state the rules that good answers will follow.

    A rule is one imperative sentence of at most 30 words: it says which field or situation it is about and exactly
    what to write or do.
    """

    task: str = dspy.InputField(desc="what the program does")
    count: int = dspy.InputField(desc="how many rules to write")
    rules: str = dspy.OutputField(desc="one rule a line")


def generate_library(
    student: dspy.Module,
    *,
    lm: dspy.BaseLM | None = None,
    count: int = 10,
    learning_objective: str = "",
    limits: LibraryLimits | None = None,
) -> ExperienceLibrary:
    """Experiences that a language model writes from the signatures alone (paper, Table 2: directly generated).

    They are as good as the model's guess; hand them to ``compile`` as ``initial_library`` to have them tested.

    Args:
        student: the program they are for.
        lm: writes them; None: the one that is configured, else the student's own.
        count: how many are asked for, 1 or more. The limits may leave fewer, then the first ones.
        learning_objective: what they are to achieve, in a sentence; part of the description.
        limits: bounds of the library.

    Raises:
        ConfigurationError: when there is no LM.
        ProgramError: when the student has no predictor.
        AdapterParseError: when the answer cannot be read.

    Example:
        >>> from tgrpo_dspy.testing import ScriptedEngine
        >>> lm = ScriptedEngine(lambda call: {"rules": "- Answer in one word.\\n- Write numbers as digits."}).lm()
        >>> [e.text for e in generate_library(dspy.Predict("question -> answer"), lm=lm, count=2)]
        ['Answer in one word.', 'Write numbers as digits.']
    """
    require_predictors(student)
    require(count >= 1, "count", count, "use 1 or more")
    objective = f"\n\nWhat to achieve: {learning_objective}" if learning_objective else ""
    with dspy.context(lm=lm or _lm_of(student), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        answer = dspy.Predict(ImagineLessons)(task=render_task(student) + objective, count=count)
    library = ExperienceLibrary()
    for edit in to_edits(lines_to_proposals(answer.rules)[:count], ()):  # one by one, to keep their order
        applied = library.apply([edit], limits=limits or LibraryLimits())
        if applied.evicted:
            break
        library = applied.library
    return library


def _lm_of(student: dspy.Module) -> dspy.BaseLM:
    found = dspy.settings.lm or next((predictor.lm for predictor in student.predictors() if predictor.lm), None)
    if found is None:
        raise ConfigurationError(
            "no LM is configured: pass lm=…, or call dspy.configure(lm=dspy.LM('provider/model')) first"
        )
    return found
