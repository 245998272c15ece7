"""A simulated model: it answers the tasks of ``benchmarks.tasks.hidden_rules``, and can be asked for rules.

It sees prompts only, so it cannot tell who asks. A prompt that gives one of its inputs and asks for the outputs of that
task is a task; it follows a hidden rule, with a set chance, where the prompt states it in words that are close enough,
less often where demonstrations show it, and guesses otherwise. Any other prompt asks for insight: it states a rule,
with a set chance, when the text shows inputs with values that follow the rule, repeats rules that the text states, and
often adds advice that is useless or wrong.

What it answers depends on the prompt, the rollout id (above temperature 0) and its seed, on nothing else. It shows
whether an optimizer works and how it spends its budget. It says nothing about real models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

import dspy
from dspy.lm15 import Request, Response, TextPart
from dspy.utils.callback import BaseCallback

from benchmarks.tasks.hidden_rules import WORLDS, Match, Rule, World, draw
from tgrpo_dspy.testing import Call, ScriptedEngine

PREFIX = "simulated/"
"""What the names of simulated models begin with; the rest is their seed."""

_ADVICE = (
    "Think about the value before writing it.",
    "Be brief and leave out what was not asked for.",
    "Check the spelling of everything that is written.",
    "Keep the order in which the input tells things.",
)
_MARKER = re.compile(r"^\[\[ ## (\w+) ## \]\]\s*$", re.MULTILINE)
_SHOWN = 1500  # characters after an input in which its values are looked for


@dataclass(frozen=True, kw_only=True)
class Ability:
    """What the model can do, in chances of 0 to 1.

    Args:
        follows: writes what the rule says where the prompt states it.
        shown: of the way from guessing to following that any number of demonstrations can bring it.
        learns: of that way, what each demonstration takes of the rest.
        tempted: follows a wrong rule that the prompt states.
        finds: states a rule that the text shows.
        repeats: states a rule again that the text states.
        misled: adds advice that is useless or wrong.
        most: rules that it finds in one answer, at most.
    """

    follows: float = 0.9
    shown: float = 0.6
    learns: float = 0.25
    tempted: float = 0.6
    finds: float = 0.35
    repeats: float = 0.9
    misled: float = 0.5
    most: int = 2


class SimulatedModel:
    """The model as a function of a call.

    Args:
        seed: another seed is another model of the same abilities.
        ability: what it can do.
    """

    def __init__(self, seed: int = 0, ability: Ability | None = None) -> None:
        self.seed, self.ability = seed, ability or Ability()

    def __call__(self, call: Call) -> str | dict[str, Any]:
        key = (self.seed, _variant(call.request), draw(call.text))
        for world in WORLDS.values():
            if set(world.outputs) <= set(call.asks_for) and world.input in call.fields:
                match = world.pattern.search(call.fields[world.input])
                if match is not None:
                    return self._answer(world, match, call, key)
        insight = "\n".join(self._insight(call, key))
        if not call.asks_for:
            return f"```\n{insight}\n```" if "```" in call.text else insight
        return {name: _as_asked(name, insight, call) for name in call.asks_for}

    def _answer(self, world: World, match: Match, call: Call, key: tuple[object, ...]) -> dict[str, Any]:
        stated = _sentences(call.system) | _sentences(call.user)
        shown = list(_demonstrations(world, call.request))
        answers = {output: self._value(world, output, match, stated, shown, key) for output in world.outputs}
        return {name: answers.get(name, "As the instructions say.") for name in call.asks_for}

    def _value(
        self,
        world: World,
        output: str,
        match: Match,
        stated: frozenset[frozenset[str]],
        shown: list[tuple[Match, Mapping[str, str]]],
        key: tuple[object, ...],
    ) -> str:
        able, rule = self.ability, world.rule(output, match)
        traps = [trap for trap in world.traps if trap.output == output and _states(stated, trap)]
        if traps and draw(*key, output, "trap") < able.tempted:
            return traps[0].value(match)
        like = sum(rule.applies(m) and values.get(output) == rule.value(m) for m, values in shown)
        by_demonstration = able.shown * (1 - (1 - able.learns) ** like)
        known = 1.0 if _states(stated, rule) else by_demonstration
        if draw(*key, output) < world.guessed + (able.follows - world.guessed) * known:
            return rule.value(match)
        wrong = [value for value in rule.naive(match) if value != rule.value(match)]
        return wrong[int(draw(*key, output, "wrong") * len(wrong))]

    def _insight(self, call: Call, key: tuple[object, ...]) -> list[str]:
        """Rules one a line: those that the text states, some that it shows, and maybe one more."""
        able, stated = self.ability, _sentences(call.text)
        rules = [rule for world in WORLDS.values() for rule in world.rules]
        traps = [trap for world in WORLDS.values() for trap in world.traps]
        kept = [r.text for r in [*rules, *traps] if _states(stated, r) and draw(*key, r.text, "repeat") < able.repeats]
        evident = sorted(_evident(call.text), key=lambda rule: draw(*key, rule.text, "order"))
        found = [rule.text for rule in evident if rule.text not in kept and draw(*key, rule.text) < able.finds]
        lines = [*kept, *found[: able.most]]
        if not lines or draw(*key, "misled") < able.misled:
            wrong = [trap.text for world in WORLDS.values() if world.pattern.search(call.text) for trap in world.traps]
            advice = [*wrong, *_ADVICE]
            lines.append(advice[int(draw(*key, "advice") * len(advice))])
        return list(dict.fromkeys(lines))


def simulated_lm(name: str) -> dspy.LM:
    """The simulated model of that name, such as ``simulated/0``.

    Raises:
        ValueError: when the name is no prefix with a seed.
    """
    seed = name.removeprefix(PREFIX)
    if not (name.startswith(PREFIX) and seed.isdigit()):
        raise ValueError(f"{name!r} is no simulated model; its name is {PREFIX} and a seed, such as {PREFIX}0")
    return _Engine(SimulatedModel(int(seed))).lm(name, callbacks=[_Variants()])


class _Engine(ScriptedEngine):
    """A scripted engine that keeps no calls, since a measurement makes very many."""

    def complete(self, request: Request) -> Response:
        response = super().complete(request)
        self.calls.clear()
        return response

    def __deepcopy__(self, memo: dict[int, Any]) -> _Engine:
        # A program that holds its LM is copied with it.
        return self


_asked: ContextVar[tuple[object, Iterator[int]] | None] = ContextVar("asked", default=None)


class _Variants(BaseCallback):
    """Remembers the rollout id of the call that begins: DSPy does not hand it to an engine, which has no use for it."""

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        given = {**instance.kwargs, **inputs, **inputs.get("kwargs", {})}
        _asked.set((given.get("rollout_id"), count()))


def _variant(request: Request) -> object:
    """Which of the answers to one prompt is asked for: by rollout id, and by number among several of one call."""
    asked = _asked.get()
    if asked is None or not request.config.temperature:
        return None
    rollout, numbers = asked
    return rollout, next(numbers)


def _as_asked(name: str, text: str, call: Call) -> Any:
    """The text as a value of the type that the prompt tells of an output field."""
    told = re.search(rf"`{name}` \((dict|list)\b", call.text)
    if told is None:
        return text
    if told[1] == "list":
        return text.splitlines()
    keys = next((json.loads(value) for field, value in call.fields.items() if field.endswith("_names")), ["self"])
    return dict.fromkeys(keys, text)


@lru_cache(maxsize=4096)
def _sentences(text: str) -> frozenset[frozenset[str]]:
    """The words of every sentence."""
    return frozenset(frozenset(re.findall(r"[a-z]+", part)) for part in re.split(r"[.\n]|\\n", text.lower()))


def _states(sentences: frozenset[frozenset[str]], rule: Rule) -> bool:
    return any(all(words & one_of for one_of in rule.words) for words in sentences)


def _demonstrations(world: World, request: Request) -> Iterator[tuple[Match, Mapping[str, str]]]:
    """The inputs and outputs of the messages before the last one."""
    texts = ["".join(part.text for part in message.parts if isinstance(part, TextPart)) for message in request.messages]
    for question, answer in zip(texts[:-1:2], texts[1:-1:2], strict=False):
        match = world.pattern.search(question)
        parts = _MARKER.split(answer)
        if match is not None:
            yield match, {name: value.strip() for name, value in zip(parts[1::2], parts[2::2], strict=False)}


def _evident(text: str) -> list[Rule]:
    """The rules that the text shows: an input, and after it the value that the rule gives."""
    found: dict[str, Rule] = {}
    for world in WORLDS.values():
        matches = list(world.pattern.finditer(text))
        ends = [*(match.start() for match in matches[1:]), len(text)]
        for match, end in zip(matches, ends, strict=bool(matches)):
            after = text[match.end() : min(end, match.end() + _SHOWN)]
            for output in world.outputs:
                rule = world.rule(output, match)
                if re.search(rf"(?<![\w/-]){re.escape(rule.value(match))}(?![\w/-])", after):
                    found[rule.text] = rule
    return list(found.values())
