"""Four small made-up tasks whose answers follow rules that the student is not told, for measurements without a model.

``benchmarks.simulated`` plays a model that can follow these rules and find them; a real model can be measured too.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import dspy

from programs.country_records.data import MONTHS
from programs.task import HELD_OUT, Sizes, Splits, Task, halves, take

_INSIDE, _OUTSIDE = 320, 120  # how many inputs there are to draw from
_SIZES = Sizes(train=20, val=12, test=40, ood=20, batch_size=10, epochs=3)

Match = re.Match[str]


@dataclass(frozen=True)
class Rule:
    """What a value follows.

    Args:
        output: the output field it is about.
        text: the rule, as one would state it.
        words: a sentence states the rule when it has a word of each of these sets.
        value: the value that follows it, from the input.
        naive: what may be written by one who does not know it.
        applies: whether it is about an input.
    """

    output: str
    text: str
    words: tuple[frozenset[str], ...]
    value: Callable[[Match], str]
    naive: Callable[[Match], Sequence[str]] = lambda match: ()
    applies: Callable[[Match], bool] = lambda match: True


@dataclass(frozen=True)
class World:
    """A task with its rules.

    Args:
        name, source: as of the task.
        signature: of the student, with one input field.
        pattern: reads an input, wherever it stands in a text.
        make: an input, drawn by a generator of random numbers; the second argument tells whether it is out-of-domain.
        rules: for every output and input exactly one applies.
        traps: rules that sound as good and are wrong.
        guessed: how often a value is right when its rule is not known, 0 to 1.
        reliable: how often the right value is the one of the rule, 0 to 1.
        allowed: values that lessons may name.
    """

    name: str
    source: str
    signature: type[dspy.Signature]
    pattern: re.Pattern[str]
    make: Callable[[random.Random, bool], str]
    rules: tuple[Rule, ...]
    traps: tuple[Rule, ...] = ()
    guessed: float = 0.2
    reliable: float = 1.0
    allowed: tuple[str, ...] = ()

    @property
    def input(self) -> str:
        """Name of the input field."""
        return str(next(iter(self.signature.input_fields)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the output fields."""
        return tuple(self.signature.output_fields)

    def rule(self, output: str, match: Match) -> Rule:
        """The rule of an output for an input."""
        return next(rule for rule in self.rules if rule.output == output and rule.applies(match))

    def right(self, output: str, match: Match) -> str:
        """The right value, which in an unreliable world may be another one than its rule says."""
        rule = self.rule(output, match)
        others = [value for value in rule.naive(match) if value != rule.value(match)]
        chance = draw(self.name, match[0], output)
        return rule.value(match) if chance < self.reliable or not others else others[int(chance * 1000) % len(others)]

    def example(self, text: str) -> dspy.Example:
        """The labelled example of an input."""
        match = self.pattern.fullmatch(text)
        assert match is not None, f"{text!r} is no input of {self.name}"
        labels = {output: self.right(output, match) for output in self.outputs}
        return dspy.Example({self.input: text}, **labels).with_inputs(self.input)

    def task(self) -> Task:
        """The task, for a measurement."""
        return Task(
            name=self.name,
            source=self.source,
            student=lambda: dspy.Predict(self.signature),
            metric=_Graded(self.outputs),
            splits=self._splits,
            sizes=_SIZES,
            allowed=self.allowed,
        )

    def _splits(self, seed: int, sizes: Sizes) -> Splits:
        for_test, rest = halves(self._pool(_INSIDE, outside=False), HELD_OUT)
        for_train, for_val = halves(rest, seed)
        return Splits(
            train=take(for_train, sizes.train, seed),
            val=take(for_val, sizes.val, seed),
            test=take(for_test, sizes.test, HELD_OUT),
            ood=take(self._pool(_OUTSIDE, outside=True), sizes.ood, HELD_OUT),
        )

    def _pool(self, count: int, *, outside: bool) -> list[dspy.Example]:
        rng = random.Random(f"{self.name} {outside}")
        texts = dict.fromkeys(self.make(rng, outside) for _ in range(count))
        return [self.example(text) for text in texts]


@dataclass(frozen=True)
class _Graded:
    """The share of outputs that are right; feedback names the others."""

    outputs: tuple[str, ...] = field(default=())

    def __call__(
        self, gold: dspy.Example, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        written = {output: str(getattr(pred, output, "")).strip() for output in self.outputs}
        wrong = [output for output in self.outputs if written[output] != gold[output]]
        feedback = "; ".join(f"{output}: wrote {written[output]!r}, expected {gold[output]!r}" for output in wrong)
        return dspy.Prediction(
            score=fmean(output not in wrong for output in self.outputs), feedback=feedback or "right"
        )


def draw(*parts: object) -> float:
    """A number in 0..1 that depends on nothing but the parts."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _words(*sets: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(words.split()) for words in sets)


class Shipment(dspy.Signature):
    """Copy the shipment's values into the fields of the register."""

    entry: str = dspy.InputField()
    reference: str = dspy.OutputField()
    customer: str = dspy.OutputField()
    date: str = dspy.OutputField()
    amount: str = dspy.OutputField()
    weight: str = dspy.OutputField()


_ENTRY = re.compile(
    r"shipment ([A-Z]{2})(\d{4}) for (\w+) (\w+) on (\d+) (\w+) (\d{4}), (\d+),(\d{3}) dollars, (\d+) kilograms"
)


def _entry(rng: random.Random, outside: bool) -> str:
    first = rng.choice(["Imani", "Tomas", "Yuki", "Leila"] if outside else ["Anna", "Bert", "Clara", "David", "Edith"])
    last = rng.choice(["Okoro", "Novak", "Tanaka", "Haddad"] if outside else ["Berg", "Stone", "Lake", "Field", "Moor"])
    code = "".join(rng.choice("QXZ" if outside else "ABCDEFGH") for _ in range(2)) + str(rng.randint(1000, 9999))
    date = (
        f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(1990, 1999) if outside else rng.randint(2015, 2024)}"
    )
    amount = f"{rng.randint(1, 99)},{rng.randint(0, 999):03d} dollars"
    return f"shipment {code} for {first} {last} on {date}, {amount}, {rng.randint(2, 90)} kilograms"


_SHIPMENTS = World(
    name="sim_formats",
    source="made up: five fields, each with a house form; out-of-domain: other names, codes and years",
    signature=Shipment,
    pattern=_ENTRY,
    make=_entry,
    guessed=0.15,
    rules=(
        Rule(
            "reference",
            "Write the reference as its digits, a hyphen, then its letters.",
            _words("reference", "digits", "hyphen dash"),
            lambda m: f"{m[2]}-{m[1]}",
            lambda m: (m[1] + m[2], f"{m[1]}-{m[2]}"),
        ),
        Rule(
            "customer",
            "Write the customer with the surname first and in capital letters.",
            _words("customer name", "surname last", "capital capitals uppercase"),
            lambda m: f"{m[4].upper()} {m[3]}",
            lambda m: (f"{m[3]} {m[4]}", f"{m[4]}, {m[3]}"),
        ),
        Rule(
            "date",
            "Write the date as day, month and year in digits, with slashes.",
            _words("date", "slash slashes", "digits numbers"),
            lambda m: f"{int(m[5]):02d}/{MONTHS.index(m[6]) + 1:02d}/{m[7]}",
            lambda m: (f"{m[5]} {m[6]} {m[7]}", f"{m[7]}-{MONTHS.index(m[6]) + 1:02d}-{int(m[5]):02d}"),
        ),
        Rule(
            "amount",
            "Write the amount without commas and put the currency code in front.",
            _words("amount", "comma commas", "currency code"),
            lambda m: f"USD {m[8]}{m[9]}",
            lambda m: (f"{m[8]},{m[9]}", f"${m[8]},{m[9]}", f"{m[8]},{m[9]} dollars"),
        ),
        Rule(
            "weight",
            "Write the weight in grams, as a plain number.",
            _words("weight", "gram grams"),
            lambda m: f"{m[10]}000",
            lambda m: (f"{m[10]} kg", m[10], f"{m[10]} kilograms"),
        ),
    ),
)


_PAIRS = {
    "payment": ("refund", "chargeback", "bank wrote"),
    "access": ("login", "lockout", "several attempts"),
    "delivery": ("delay", "loss", "no scan"),
    "contract": ("renewal", "upgrade", "more seats"),
    "device": ("setup", "repair", "worked before"),
}
_NO_CUE = "first contact"
_QUEUES = tuple(queue for first, second, _ in _PAIRS.values() for queue in (first, second))


_CUES = (_NO_CUE, *(cue for _, _, cue in _PAIRS.values()))


class Ticket(dspy.Signature):
    __doc__ = f"Choose the queue of the ticket, one of: {', '.join(_QUEUES)}."

    ticket: str = dspy.InputField()
    queue: str = dspy.OutputField()


def _ticket(rng: random.Random, outside: bool) -> str:
    topic, (_, _, cue) = rng.choice(list(_PAIRS.items()))
    city = rng.choice(
        ["Lima", "Quito", "Bogota", "Cusco"] if outside else ["Lyon", "Turin", "Bergen", "Ghent", "Porto"]
    )
    note = cue if rng.random() < 0.5 else _NO_CUE
    return (
        f"ticket {rng.randint(1000, 9999)} from {city} about {topic} by {'chat' if outside else 'phone'}, note {note}"
    )


def _queue_rule(topic: str, first: str, second: str, cue: str) -> Rule:
    return Rule(
        "queue",
        f"Choose {second} when the note has {cue}, and otherwise {first}.",
        _words(second, first, cue.split()[-1]),
        lambda m: second if m[3] == cue else first,
        lambda m: (first, second),
        lambda m: m[2] == topic,
    )


_TICKETS = World(
    name="sim_classes",
    source="made up: ten classes in pairs that are easily confused; out-of-domain: other cities and channels",
    signature=Ticket,
    pattern=re.compile(rf"ticket \d{{4}} from (\w+) about (\w+) by \w+, note ({'|'.join(_CUES)})"),
    make=_ticket,
    guessed=0.45,
    rules=tuple(_queue_rule(topic, *pair) for topic, pair in _PAIRS.items()),
    allowed=_QUEUES,
)


class Booking(dspy.Signature):
    """Enter the booking into the plan of the rooms."""

    request: str = dspy.InputField()
    start: str = dspy.OutputField()
    length: str = dspy.OutputField()
    room: str = dspy.OutputField()


def _booking(rng: random.Random, outside: bool) -> str:
    room = rng.choice(["Nile", "Volga", "Indus"] if outside else ["Oslo", "Rome", "Cairo", "Delhi"])
    hour, minute = rng.randint(14, 19) if outside else rng.randint(8, 16), rng.choice([5, 10, 20, 25, 35, 40, 50])
    length, people = rng.choice([20, 25, 35, 40, 50, 55, 70, 80]), rng.randint(2, 16)
    number = rng.randint(100, 999)
    return f"booking {number} wants {room} at {hour}:{minute:02d} over {length} minutes with {people} people"


def _half_hour(match: Match) -> str:
    half_hours = (int(match[2]) * 60 + int(match[3]) + 15) // 30
    return f"{half_hours // 2}:{half_hours % 2 * 30:02d}"


_BOOKINGS = World(
    name="sim_traps",
    source="made up: three fields, and three plausible rules that are wrong; out-of-domain: other rooms and hours",
    signature=Booking,
    pattern=re.compile(r"booking \d{3} wants (\w+) at (\d+):(\d\d) over (\d+) minutes with (\d+) people"),
    make=_booking,
    guessed=0.3,
    rules=(
        Rule(
            "start",
            "Move the start on to the next full hour.",
            _words("start", "next", "full"),
            lambda m: f"{int(m[2]) + 1}:00",
            lambda m: (f"{m[2]}:{m[3]}", f"{m[2]}:00"),
        ),
        Rule(
            "length",
            "Give the length in minutes, raised to a whole number of quarters.",
            _words("length", "quarter quarters", "raised raise up"),
            lambda m: f"{-(-int(m[4]) // 15) * 15} min",
            lambda m: (f"{m[4]} min", f"{m[4]} minutes"),
        ),
        Rule(
            "room",
            "Put a plus behind the room when more than eight people come.",
            _words("room", "plus", "eight"),
            lambda m: f"{m[1]}+" if int(m[5]) > 8 else m[1],
            lambda m: (f"room {m[1]}", f"{m[1]}/{m[5]}"),
        ),
    ),
    traps=(
        Rule("start", "Round the start to the nearest half hour.", _words("start", "nearest", "half"), _half_hour),
        Rule(
            "length",
            "Give the length in hours, with one decimal.",
            _words("length", "hours"),
            lambda m: f"{int(m[4]) / 60:.1f} h",
        ),
        Rule(
            "room",
            "Write the room in small letters.",
            _words("room", "small lowercase", "letters"),
            lambda m: m[1].lower(),
        ),
    ),
)


_VERDICTS = ("vent", "hold", "drain", "flush")
_SIGNS = {"drift": "vent", "hum": "drain", "frost": "flush", "calm": "hold"}


class Reading(dspy.Signature):
    __doc__ = f"Decide what the operator does about the reading: {', '.join(_VERDICTS)}."

    reading: str = dspy.InputField()
    action: str = dspy.OutputField()


def _reading(rng: random.Random, outside: bool) -> str:
    sensor = f"{rng.choice('WXYZ' if outside else 'ABCDEF')}{rng.randint(10, 99)}"
    value = rng.randint(500, 900) if outside else rng.randint(100, 499)
    return f"sensor {sensor} shows {value} units with {rng.choice(list(_SIGNS))} at {rng.randint(0, 23)} hours"


def _sign_rule(sign: str, verdict: str) -> Rule:
    return Rule(
        "action",
        f"Choose {verdict} when the reading tells of {sign}.",
        _words(verdict, sign, "when if whenever"),
        lambda m: verdict,
        lambda m: _VERDICTS,
        lambda m: m[3] == sign,
    )


_READINGS = World(
    name="sim_noisy",
    source="made up: rules that hold for 70 % of the inputs; out-of-domain: other sensors and higher values",
    signature=Reading,
    pattern=re.compile(r"sensor (\w+) shows (\d+) units with (\w+) at \d+ hours"),
    make=_reading,
    guessed=0.3,
    reliable=0.7,
    rules=tuple(_sign_rule(sign, verdict) for sign, verdict in _SIGNS.items()),
    allowed=_VERDICTS,
)

WORLDS: Mapping[str, World] = {world.name: world for world in (_SHIPMENTS, _TICKETS, _BOOKINGS, _READINGS)}


def tasks() -> list[Task]:
    """The four tasks."""
    return [world.task() for world in WORLDS.values()]
