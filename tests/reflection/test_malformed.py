"""The corpus of malformed answers, through the whole path: no crash, and what a person would read is learned."""

from __future__ import annotations

import pytest

from benchmarks.malformed import LESSON, Answer, corpus
from tests.reflection.test_advantage import Answering, experienced, learn

CORPUS = list(corpus())


def test_the_corpus_is_large_and_its_answers_differ() -> None:
    assert len({answer.text for answer in CORPUS}) >= 150


def lessons_from(answer: Answer) -> tuple[list[str], int]:
    model = Answering(answer.text)
    report = learn(model, experienced(), epochs=1)
    return [e.text for e in report.library], len(model.reflections)


@pytest.mark.parametrize("answer", CORPUS, ids=lambda answer: answer.name)
def test_what_a_person_would_read_is_learned_at_the_first_attempt(answer: Answer) -> None:
    texts, calls = lessons_from(answer)
    assert (LESSON in texts) == answer.readable
    assert calls == 1 if answer.readable else calls >= 1
