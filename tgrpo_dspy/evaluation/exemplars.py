"""Exemplars: which rollouts and labels are worth showing, and showing them as demonstrations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import dspy

from tgrpo_dspy.cloning import ProgramT, clone
from tgrpo_dspy.library.outside import orders_in
from tgrpo_dspy.records import Demonstration, Exemplar, Group, Rollout
from tgrpo_dspy.sampling.demos import labelled_demonstration, plain
from tgrpo_dspy.sampling.examples import Item

_FURTHER = re.compile(r"[#+]")  # equal examples, and further groups of one, have keys that differ from here on


def best_rollout(group: Group, step: int) -> Exemplar | None:
    """The best rollout of a group whose rewards differ; None when it cannot be shown, as a failure never can, nor one
    with an order to the reader that came from outside.

    Args:
        group: rollouts with their demonstrations.
        step: the step that sampled them.
    """
    for rollout in group.rollouts:
        if rollout.reward == max(group.rewards) and rollout.demonstrations and not _carries_orders(rollout, group):
            return Exemplar(
                example=_example(group),
                step=step,
                reward=rollout.reward,
                spread=group.spread,
                demonstrations=rollout.demonstrations,
            )
    return None


def labelled(group: Group, item: Item, student: dspy.Module, step: int, reward: float) -> Exemplar | None:
    """The example of a group with its label, for the predictors that ran; None where it says nothing to any of them.

    Args:
        group: rollouts of the example, with their rewards.
        item: the example.
        step: the step that sampled them.
        reward: of a right answer.
    """
    ran = frozenset[str]().union(*(rollout.ran for rollout in group.rollouts))
    predictors = ((name, predictor) for name, predictor in student.named_predictors() if name in ran)
    found = (labelled_demonstration(name, predictor, item.example) for name, predictor in predictors)
    shown = tuple(demonstration for demonstration in found if demonstration is not None)
    if not shown:
        return None
    spread = reward - min(group.rewards)
    return Exemplar(
        example=_example(group), step=step, reward=reward, spread=spread, demonstrations=shown, labelled=True
    )


def foremost(exemplars: Iterable[Exemplar], limit: int) -> tuple[Exemplar, ...]:
    """The exemplars to show first, one for each example: the highest reward, then the largest spread, then all steps
    in turn.

    Args:
        exemplars: in the order in which they were found.
        limit: how many at most.

    Example:
        >>> found = [Exemplar(example=e, step=s, reward=r, spread=1.0, demonstrations=()) for e, s, r in
        ...          [("a", 1, 1.0), ("b", 1, 1.0), ("c", 1, 0.5), ("d", 2, 1.0), ("c", 2, 0.9)]]
        >>> [(e.example, e.step) for e in foremost(found, 4)]
        [('a', 1), ('d', 2), ('b', 1), ('c', 2)]
    """
    best: dict[str, Exemplar] = {}
    for exemplar in exemplars:
        known = best.get(exemplar.example)
        if known is None or _merit(exemplar) > _merit(known):
            best = {name: kept for name, kept in best.items() if kept is not known} | {exemplar.example: exemplar}
    turns: Counter[object] = Counter()
    ranked = []
    for exemplar in best.values():
        reward, spread = _merit(exemplar)
        turns[reward, spread, exemplar.step] += 1
        ranked.append(((-reward, -spread, turns[reward, spread, exemplar.step], exemplar.step), exemplar))
    return tuple(exemplar for _, exemplar in sorted(ranked, key=lambda pair: pair[0]))[:limit]


def show(program: ProgramT, exemplars: Iterable[Exemplar]) -> ProgramT:
    """A copy of the program whose predictors show the exemplars after the demonstrations they have.

    None is added that a predictor shows already.

    Example:
        >>> shown = Demonstration(predictor="self", values={"question": "1 + 1?", "answer": "2"})
        >>> exemplar = Exemplar(example="k", step=1, reward=1.0, spread=1.0, demonstrations=(shown,))
        >>> once = show(dspy.Predict("question -> answer"), [exemplar])
        >>> len(once.demos), once.demos[0].answer, len(show(once, [exemplar]).demos)
        (1, '2', 1)
    """
    copy = clone(program)
    predictors = dict(copy.named_predictors())
    for exemplar in exemplars:
        for demonstration in exemplar.demonstrations:
            predictor = predictors[demonstration.predictor]
            if not _is_shown(demonstration, predictor):
                predictor.demos = [*predictor.demos, _demo(demonstration, predictor, exemplar.labelled)]
    return copy


def is_new(exemplar: Exemplar, program: dspy.Module) -> bool:
    """Whether the program does not show all of the exemplar already."""
    predictors = dict(program.named_predictors())
    return not all(_is_shown(shown, predictors[shown.predictor]) for shown in exemplar.demonstrations)


def _example(group: Group) -> str:
    return _FURTHER.split(group.key)[0]


def _carries_orders(rollout: Rollout, group: Group) -> bool:
    """Whether a demonstration would put an order from outside into every prompt."""
    given = {*group.inputs.values(), *group.labels.values(), *rollout.outputs.values()}
    values = (str(value) for shown in rollout.demonstrations for value in shown.values.values())
    return any(orders_in(value) for value in values if value not in given)


def _merit(exemplar: Exemplar) -> tuple[float, float]:
    return exemplar.reward, exemplar.spread


def _demo(demonstration: Demonstration, predictor: dspy.Predict, labelled: bool) -> dspy.Example:
    """A demonstration as DSPy's own optimizers make them, which mark what a program wrote."""
    mark = {} if labelled else {"augmented": True}
    return dspy.Example({**mark, **demonstration.values}).with_inputs(*predictor.signature.input_fields)


def _is_shown(demonstration: Demonstration, predictor: dspy.Predict) -> bool:
    return any(_values(demo, predictor) == demonstration.values for demo in predictor.demos)


def _values(demo: Mapping[str, object] | dspy.Example, predictor: dspy.Predict) -> dict[str, object] | None:
    """The fields of a demo, which is an example, or a dict in a program that was loaded."""
    return plain(dict(demo.items()), predictor.signature.fields)
