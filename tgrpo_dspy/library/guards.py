"""What may not become an experience: text that breaks the prompt, leaks data, or is not about the task."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

_FIELD_MARKER = re.compile(r"\[\[\s*##|##\s*\]\]")
_BLOCK_TAG = re.compile(r"<\s*/?\s*experiences\b", re.IGNORECASE)
_ABOUT_ATTEMPTS = re.compile(
    r"\b(?:attempts?|rollouts?|responses?|answers?|runs?)\s*(?:#\s*)?\d+\b"
    r"|\b(?:first|second|third|last|best|worst) attempt\b",
    re.IGNORECASE,
)
_ILLUSTRATION = re.compile(
    r"[\s,;:(]*(?:\b(?:for example|for instance|such as|like|as in|not)\b|\be\.\s?g\.)"
    r"(?:(?!\b(?:for example|for instance|such as)\b).)*$",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_PUNCTUATION = ".,;:!?'\"`()[]{}<>\u201c\u201d\u2018\u2019"
_QUOTED_WORDS = 6
_SECRET_LENGTH = 3


@dataclass(frozen=True)
class Guards:
    """Decides whether a text may become an experience.

    Args:
        secrets: exact values (case-folded) no experience may contain: labels and inputs of single training examples.
        passages: word sequences (case-folded) of the training inputs that no experience may repeat.

    Example:
        >>> guards = Guards.for_examples([({"text": "Chad, 11 August 1960"}, {"date": "1960-08-11"})])
        >>> guards.refuse("Chad's date is 1960-08-11.")
        "quotes the training value '1960-08-11'"
        >>> guards.refuse("Write dates as YYYY-MM-DD.") is None
        True
    """

    secrets: frozenset[str] = frozenset()
    passages: frozenset[tuple[str, ...]] = frozenset()

    @classmethod
    def for_examples(
        cls, examples: Iterable[tuple[Mapping[str, str], Mapping[str, str]]], *, allowed: Iterable[str] = ()
    ) -> Guards:
        """Guards against quoting ``(inputs, labels)`` pairs.

        A value or a passage that two or more examples share belongs to the task, not to one example, and may be
        repeated; so may the values of a label that takes at most half as many values as there are examples (a class),
        and every value in ``allowed``.
        """
        examples = list(examples)
        values: Counter[str] = Counter()
        passages: Counter[tuple[str, ...]] = Counter()
        for inputs, labels in examples:
            values.update({_fold(value) for value in (*inputs.values(), *labels.values())})
            passages.update(set().union(*map(_ngrams, inputs.values())))
        classes = label_classes(labels for _, labels in examples)
        permitted = {_fold(value) for value in (*allowed, *chain.from_iterable(classes.values()))}
        secrets = {v for v, count in values.items() if count == 1 and len(v) >= _SECRET_LENGTH and v not in permitted}
        return cls(secrets=frozenset(secrets), passages=frozenset(p for p, count in passages.items() if count == 1))

    def refuse(self, text: str) -> str | None:
        """The reason why ``text`` may not become an experience, or None when it may."""
        return _breaks_prompt(text) or _not_about_task(text) or self._leaks(text)

    def redact(self, text: str) -> str:
        """The text without an illustration at its end that quotes a training value: the rule before it may stand.

        Example:
            >>> guards = Guards(secrets=frozenset({"1960-08-11"}))
            >>> guards.redact("Write dates as YYYY-MM-DD, for example 1960-08-11.")
            'Write dates as YYYY-MM-DD.'
        """
        rule = _ILLUSTRATION.sub("", text)
        return f"{rule}." if rule and rule != text and self._leaks(text) else text

    def _leaks(self, text: str) -> str | None:
        folded = _fold(text)
        for value in _tokens_of(folded):
            if value in self.secrets:
                return f"quotes the training value {value!r}"
        repeated = next((gram for gram in _ngrams(text) if gram in self.passages), None)
        return f"repeats {' '.join(repeated)!r} from a training input" if repeated else None


def label_classes(labels: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    """By field, the values of the labels that sort examples into classes: at most half as many as there are examples.

    Example:
        >>> label_classes([{"name": "a", "side": "left"}, {"name": "b", "side": "left"}])
        {'side': ['left']}
    """
    by_field: dict[str, list[str]] = {}
    for label in labels:
        for name, value in label.items():
            by_field.setdefault(name, []).append(value.strip())
    return {n: sorted(set(found)) for n, found in by_field.items() if 2 * len(set(map(_fold, found))) <= len(found)}


def _breaks_prompt(text: str) -> str | None:
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in text):
        return "contains control characters or broken Unicode"
    if _FIELD_MARKER.search(text):
        return "contains a DSPy field marker"
    if _BLOCK_TAG.search(text):
        return "contains a tag of the experience block"
    return None


def _not_about_task(text: str) -> str | None:
    return "is about an attempt, not about the task" if _ABOUT_ATTEMPTS.search(text) else None


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _tokens_of(folded: str) -> Iterable[str]:
    """Every run of up to six words of the text, stripped of the punctuation around it."""
    words = folded.split()
    for start in range(len(words)):
        for end in range(start + 1, min(start + _QUOTED_WORDS, len(words)) + 1):
            yield " ".join(words[start:end]).strip(_PUNCTUATION)


def _ngrams(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return {tuple(words[i : i + _QUOTED_WORDS]) for i in range(len(words) - _QUOTED_WORDS + 1)}
