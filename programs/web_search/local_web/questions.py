"""All questions about the local web, and how they are drawn: no country stands in two of the sets.

Examples hold a question and an answer only. An optimizer takes every field of an example that is no input for a label
and may show it; the kind of a question and its evidence would give the way away, and are looked up with `question_of`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache

import dspy

from programs.task import HELD_OUT, Splits, halves, take
from programs.web_search.local_web.one_hop import one_hop_questions
from programs.web_search.local_web.question import Question
from programs.web_search.local_web.two_hops import two_hop_questions
from programs.web_search.local_web.world import the_world

OOD_REGION = "africa"


@cache
def questions() -> tuple[Question, ...]:
    """Every question, in a fixed order, the same at every run."""
    world = the_world()
    return (*one_hop_questions(world), *two_hop_questions(world))


def question_of(example: dspy.Example) -> Question:
    """The kind, the evidence and the rest of the question that an example asks.

    Raises:
        ValueError: for a question that is not from here.
    """
    found = _by_words().get(str(example.question))
    if found is None:
        raise ValueError(f"not a question about the local web: {example.question!r}")
    return found


def splits(seed: int, *, train: int = 16, val: int = 12, test: int = 40, ood: int = 20) -> Splits:
    """Questions by set; the kinds take turns in each.

    Every country belongs to one set, and a question to the set that has all its countries. Test and ood, the region
    held out, are the same for every seed; the seed draws train and validation from the rest.

    Raises:
        ValueError: when there are not so many questions; the message names the set.
    """
    codes = {"ood": [country.code for country in the_world().in_region(OOD_REGION)]}
    outside = [country.code for country in the_world() if country.region != OOD_REGION]
    codes["test"], rest = halves(outside, HELD_OUT)
    codes["train"], codes["val"] = halves(rest, seed)
    return Splits(
        train=_draw("train", codes, train, seed),
        val=_draw("val", codes, val, seed),
        test=_draw("test", codes, test, HELD_OUT),
        ood=_draw("ood", codes, ood, HELD_OUT),
    )


def _draw(name: str, codes: Mapping[str, list[str]], count: int, seed: int | str) -> list[dspy.Example]:
    inside = [to_example(question) for question in questions() if question.countries <= set(codes[name])]
    try:
        return take(inside, count, seed, kind=lambda example: question_of(example).kind)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def to_example(question: Question) -> dspy.Example:
    """The question as an example whose only input is the question and whose only label is the answer."""
    return dspy.Example(question=question.question, answer=question.answer).with_inputs("question")


@cache
def _by_words() -> Mapping[str, Question]:
    found = {question.question: question for question in questions()}
    if len(found) < len(questions()):
        (words, _), *_ = Counter(question.question for question in questions()).most_common(1)
        raise ValueError(f"two questions have the same words: {words!r}")
    return found
