"""What one run of a program uses: LM calls, tokens and dollars, between the fewest and the most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import mean
from typing import Any

import dspy

from tgrpo_dspy.estimation.structure import parts
from tgrpo_dspy.library.instructions import without_block
from tgrpo_dspy.library.limits import estimate_tokens
from tgrpo_dspy.records import Usage
from tgrpo_dspy.runs.prices import price
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.prompts import prompt_tokens

# Tokens of one field that an LM or a tool writes.
_FEWEST, _MOST = 5, 300
# Four bytes to a token is a rule of thumb.
_LOW, _HIGH = 0.8, 1.25
_SAMPLE = 3


@dataclass(frozen=True, slots=True)
class Load:
    """The fewest and the most that something uses."""

    low: Usage = field(default_factory=Usage)
    high: Usage = field(default_factory=Usage)

    def __add__(self, other: Load) -> Load:
        return Load(self.low + other.low, self.high + other.high)

    def times(self, fewest: int, most: int) -> Load:
        """That, between ``fewest`` and ``most`` times."""
        return Load(_times(self.low, fewest), _times(self.high, most))


def call(lm: dspy.BaseLM | None, prompt: tuple[float, float], completion: tuple[int, int]) -> Load:
    """One LM call with this many tokens (estimated) in its prompt and completion."""
    bound = _max_tokens(lm)
    low, high = (min(tokens, bound or tokens) for tokens in completion)
    return Load(_usage(lm, int(_LOW * prompt[0]), low), _usage(lm, int(_HIGH * prompt[1]), high))


def bare_prompt_tokens(predictor: dspy.Predict, adapter: dspy.Adapter, inputs: Mapping[str, Any]) -> int:
    """Tokens of the prompt a predictor is given, without the experiences it may carry."""
    signature = predictor.signature.with_instructions(without_block(predictor.signature.instructions))
    return prompt_tokens(signature, predictor.demos, inputs, adapter)


class RunLoad:
    """Works out what a run of a program uses on one of a few examples, on average.

    Args:
        items: the examples.
        adapter: what makes the prompts.
        library_tokens: most tokens of the experiences in one prompt.
    """

    def __init__(self, items: Sequence[Item], adapter: dspy.Adapter, library_tokens: int) -> None:
        self._items, self._adapter, self._library_tokens = items, adapter, library_tokens

    def of(self, module: dspy.Module, turns: int = 1, inside: frozenset[int] = frozenset()) -> Load:
        """One run of a module that is shown ``turns`` earlier turns of the module around it."""
        if isinstance(module, dspy.Predict):
            return self._call(module, turns)
        inside |= {id(module)}
        run = Load()
        cheapest: list[Usage] = []
        for part in parts(module):
            load = Load() if id(part.module) in inside else self.of(part.module, max(turns, part.turns), inside)
            if load.high.calls:
                run += load.times(part.fewest, part.most)
                cheapest.append(load.low)
        return run if run.low.calls or not cheapest else Load(_least(cheapest), run.high)

    def _call(self, predictor: dspy.Predict, turns: int) -> Load:
        names = list(predictor.signature.input_fields)
        known = [name for name in names if name in self._items[0].inputs]
        prompt = self._prompt_tokens(predictor, known)
        written = _MOST * turns * (len(names) - len(known))
        outputs = len(predictor.signature.output_fields)
        return call(
            predictor.lm or dspy.settings.lm,
            (prompt, prompt + written + self._library_tokens),
            (_FEWEST * outputs, _MOST * outputs),
        )

    def _prompt_tokens(self, predictor: dspy.Predict, known: Sequence[str]) -> float:
        """What a prompt holds beside the inputs, measured on a few examples, and the inputs, averaged over all."""
        beside = []
        for item in self._items[:_SAMPLE]:
            inputs = {name: value for name, value in item.example.inputs().items() if name in known}
            beside.append(bare_prompt_tokens(predictor, self._adapter, inputs) - _tokens(item, known))
        return mean(beside) + mean(_tokens(item, known) for item in self._items)


def _tokens(item: Item, names: Sequence[str]) -> int:
    """Tokens of an example's fields in full; images and the like have none that could be told."""
    values = [item.example.get(name, "") for name in names]
    return sum(estimate_tokens(str(value)) for value in values if not isinstance(value, dspy.Type))


def _usage(lm: dspy.BaseLM | None, prompt: int, completion: int) -> Usage:
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion}
    cost = price(lm.model, tokens) if lm is not None else None
    return Usage(calls=1, cost=cost or 0.0, unpriced=int(cost is None), **tokens)


def _max_tokens(lm: dspy.BaseLM | None) -> int | None:
    if lm is None:
        return None
    found: int | None = lm.kwargs.get("max_tokens") or lm.kwargs.get("max_completion_tokens")
    return found


def _times(usage: Usage, count: int) -> Usage:
    return Usage(**{f.name: getattr(usage, f.name) * count for f in fields(usage)})


def _least(usages: Sequence[Usage]) -> Usage:
    return Usage(**{f.name: min(getattr(usage, f.name) for usage in usages) for f in fields(Usage)})
