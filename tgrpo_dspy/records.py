"""What happened in a run, as plain frozen data without behaviour beyond sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, TypeVar

import pydantic

from tgrpo_dspy.library.edits import Edit, Refusal
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.library import ExperienceLibrary

_BRIEF_CHARS = 200

T = TypeVar("T")
# A run that keeps no exemplars is written as one that knows of none.
_UnlessEmpty = Annotated[tuple[T, ...], pydantic.Field(exclude_if=lambda value: not value)]

Role = Literal["rollout", "metric", "reflection", "evaluation"]
FailureKind = Literal["parse", "program", "timeout", "context", "lm", "metric"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """LM calls and tokens.

    Args:
        calls: calls that the model answered.
        cached: calls that DSPy's cache answered; they cost nothing and count no tokens.
        failed: calls that ended in an error after DSPy's own retries.
        prompt_tokens, completion_tokens: as reported by the provider; 0 where it reports none.
        cost: US dollars for the calls whose price is known.
        unpriced: answered calls whose price is not known; their cost is not zero, it is missing.

    Example:
        >>> (Usage(calls=1, prompt_tokens=10) + Usage(calls=2, cached=1)).calls
        3
    """

    calls: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def __add__(self, other: Usage) -> Usage:
        # Written out: every rollout adds usage up a dozen times.
        return Usage(
            calls=self.calls + other.calls,
            cached=self.cached + other.cached,
            failed=self.failed + other.failed,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=self.cost + other.cost,
            unpriced=self.unpriced + other.unpriced,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a rollout has no prediction, or a prediction no reward.

    ``parse`` (the answer did not have the asked form), ``program`` (the program or a tool raised), ``timeout`` (the
    deadline passed) and ``context`` (a prompt outgrew the LM's context window) are scored with the failure reward;
    ``lm`` and ``metric`` say nothing about the program and are left out of every score.

    Args:
        kind: which of them it is.
        error, message: class and text of the exception.
        completion: what the LM wrote, where it could not be parsed.
        missing: the output fields that were not in it.
        partial: the output fields that were.
    """

    kind: FailureKind
    error: str
    message: str
    completion: str = ""
    missing: tuple[str, ...] = ()
    partial: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One call of a predictor or a tool inside a rollout, with its values already rendered as text.

    Args:
        name: the predictor's name in the program (its class, when the program does not list it), or the tool's name.
        inputs: input fields or arguments. One that only repeats what the rollout held before is left out.
        outputs: output fields; of a tool ``observation``, or ``error`` when it raised.
        kind: what was called.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    kind: Literal["predictor", "tool"] = "predictor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A call of a predictor with the values of its fields, to be shown in later prompts.

    Args:
        predictor: its name in the program.
        values: inputs and outputs by field name, as JSON data.
    """

    predictor: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One run of the program on one example.

    Args:
        number: its place in the group, from 0.
        outputs: the fields of the prediction as text.
        turns: the calls of predictors and tools, in order.
        reward: what the metric gave, or without ground truth the agreement with the group; None when the run says
            nothing about the program (an LM or metric failure).
        feedback: what the metric said.
        failure: why there is no prediction, or no reward.
        left_out: ids of the experiences on trial that this run went without.
        seconds: wall time.
        demonstrations: the last call of every predictor, while learning that keeps exemplars.
    """

    number: int
    outputs: Mapping[str, str] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    reward: float | None = None
    feedback: str = ""
    failure: Failure | None = None
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0
    demonstrations: _UnlessEmpty[Demonstration] = ()

    @property
    def ran(self) -> frozenset[str]:
        """Names of the predictors that ran."""
        return frozenset(turn.name for turn in self.turns if turn.kind == "predictor")

    @property
    def from_outside(self) -> tuple[str, ...]:
        """What its tools returned, and inputs of its predictors that no predictor before them wrote."""
        found: list[str] = []
        written: set[str] = set()
        for turn in self.turns:
            if turn.kind == "tool":
                found += turn.outputs.values()
            else:
                found += [text for text in turn.inputs.values() if not any(part in text for part in written)]
                written |= {text for text in turn.outputs.values() if text}
        return tuple(found)

    def brief(self) -> Rollout:
        """The rollout without its turns and demonstrations, its texts cut to what a list shows."""
        failure = self.failure and replace(
            self.failure, message=_cut(self.failure.message), completion=_cut(self.failure.completion), partial={}
        )
        outputs = {name: _cut(text) for name, text in self.outputs.items()}
        feedback = _cut(self.feedback)
        return replace(self, turns=(), demonstrations=(), outputs=outputs, feedback=feedback, failure=failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rollouts of one example within a step.

    Args:
        key: content hash of the example.
        inputs, labels: the example's fields, rendered as text.
    """

    key: str
    inputs: Mapping[str, str]
    labels: Mapping[str, str]
    rollouts: tuple[Rollout, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """The rewards of the scored rollouts, in order of their numbers."""
        return tuple(r.reward for r in self.rollouts if r.reward is not None)

    @property
    def spread(self) -> float:
        """Best minus worst reward; 0 with fewer than two scored rollouts."""
        return max(self.rewards) - min(self.rewards) if len(self.rewards) > 1 else 0.0

    @property
    def from_outside(self) -> tuple[str, ...]:
        """What came into its rollouts from outside, the example itself apart."""
        texts = (text for rollout in self.rollouts for text in rollout.from_outside)
        return tuple(dict.fromkeys(text for text in texts if text not in self.inputs.values()))

    def brief(self) -> Group:
        """The group with brief rollouts and cut texts."""
        return replace(
            self,
            inputs={name: _cut(text) for name, text in self.inputs.items()},
            labels={name: _cut(text) for name, text in self.labels.items()},
            rollouts=tuple(rollout.brief() for rollout in self.rollouts),
        )


def _cut(text: str) -> str:
    return text if len(text) <= _BRIEF_CHARS else f"{text[: _BRIEF_CHARS - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """What is kept as a demonstration beside the library: the best rollout of a group whose rewards differ, or the
    example with its label where no rollout was right.

    Args:
        example: key of the training example, whichever of its groups it comes from.
        step: the step that sampled it.
        reward: its reward, the highest of the group; of a label that of a right answer.
        spread: the reward minus the worst of the group.
        demonstrations: what each predictor is shown of it.
        labelled: whether it shows the label, and not what the program wrote.
    """

    example: str
    step: int
    reward: float
    spread: float
    demonstrations: tuple[Demonstration, ...]
    labelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A program's scores on a validation set.

    Args:
        repeats: per example, in the order of the set, the score of every run; None where the LM or the metric failed.
        ran: the predictors that ran.
    """

    repeats: tuple[tuple[float | None, ...], ...]
    ran: tuple[str, ...] = ()

    @property
    def scores(self) -> tuple[float | None, ...]:
        """Per example the mean of its scored runs; None where there is none."""
        means = []
        for repeats in self.repeats:
            scored = [score for score in repeats if score is not None]
            means.append(sum(scored) / len(scored) if scored else None)
        return tuple(means)

    @property
    def mean(self) -> float:
        """Mean of the scored examples (Mean@k with k repeats); 0 when none was scored."""
        scored = [score for score in self.scores if score is not None]
        return sum(scored) / len(scored) if scored else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured number, in units of the score.

    Args:
        mean: the number.
        standard_error: its standard error; infinite when the data cannot tell the number at all.
        n: independent examples behind it.
    """

    mean: float
    standard_error: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the compiled program could carry, measured on the validation set.

    Args:
        label: what it is, in words.
        experiences, exemplars: how many it has of each.
        score: its validation score; None when the run stopped before it was known.
        prompt_tokens: tokens of a prompt without its inputs (estimated), averaged over the program's predictors.
        chosen: whether it is what the compiled program carries.
    """

    label: str
    experiences: int
    exemplars: int
    score: Measured | None
    prompt_tokens: int
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantage:
    """What one reflection call made of a few groups.

    Args:
        text: what set the better rollouts apart from the worse, in words.
        edits: the changes to the library it proposed; None when no answer could be read, so that the groups are lost.
        groups: how many groups it saw.
        surplus: edits beyond ``experiences_per_group``, which were left out.
        refused: edits that repeat or follow what came from outside through a tool.
    """

    text: str
    edits: tuple[Edit, ...] | None
    groups: int
    surplus: int = 0
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step: what was sampled, what was learned, what it was worth.

    Args:
        step: number of the step, from 1.
        epoch: number of the epoch, from 1.
        groups: the groups in batch order, in brief: a run keeps the turns of its rollouts in its ``run_dir`` only.
        informative: how many of them had spread.
        advantages: one per reflection call, in batch order, with the edits each proposed.
        applied, refused, evicted, joined: what became of the edits after curation (see ``Applied``).
        dropped: experiences that the trial has shown to do harm.
        effects: by id, what having an experience in adds to the reward, as far as the trial can tell by now.
        before, after: the library the rollouts ran with, and the one the step made.
        evaluation: score of ``after`` on the validation set, where there is one.
        ran: the predictors that ran in the step's rollouts.
        accepted: whether learning went on from ``after``; else it went back to where the step began.
        verdict: why, and what it means for the library that is returned.
        exemplars: what of the step may be kept as demonstrations.
    """

    step: int
    epoch: int
    groups: tuple[Group, ...]
    informative: int
    advantages: tuple[Advantage, ...]
    applied: tuple[Edit, ...]
    refused: tuple[Refusal, ...]
    evicted: tuple[Experience, ...]
    joined: tuple[Experience, ...]
    dropped: tuple[Experience, ...]
    effects: Mapping[str, Measured]
    before: ExperienceLibrary
    after: ExperienceLibrary
    evaluation: Evaluation | None
    ran: tuple[str, ...]
    usage: Mapping[Role, Usage]
    seconds: float
    accepted: bool = True
    verdict: str = ""
    exemplars: _UnlessEmpty[Exemplar] = ()

    @property
    def proposed(self) -> tuple[Edit, ...]:
        """Every edit the reflection proposed, before curation."""
        return tuple(
            edit
            for advantage in self.advantages
            for edit in (*(advantage.edits or ()), *(refusal.edit for refusal in advantage.refused))
        )

    @property
    def lost(self) -> int:
        """Informative groups whose reflection never gave a readable answer."""
        return sum(advantage.groups for advantage in self.advantages if advantage.edits is None)

    @property
    def rewards(self) -> tuple[tuple[float, ...], ...]:
        """The rewards of every group, in batch order."""
        return tuple(group.rewards for group in self.groups)

    @property
    def mean_reward(self) -> float:
        """Mean reward of all scored rollouts of the step; 0 when none was scored."""
        flat = [reward for rewards in self.rewards for reward in rewards]
        return sum(flat) / len(flat) if flat else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """What ``compile`` did and what it cost.

    Args:
        steps: one record per step.
        student: the student's own score on the validation set, where there is one.
        library: the library in the compiled program.
        best_step: step whose library was returned; 0 when that is the student's own, or none.
        usage: LM calls and tokens by role, over the whole run; of work that ``run_dir`` held, what it took then.
        seconds: wall time of this call of ``compile``.
        stopped_by: what ended the run before its last step (``budget: …`` or ``lm: …``); None: nothing did.
        frozen: parts of the student that were compiled before, and were left alone.
        untouched: predictors that never ran, and so got no experience.
        exemplars: what the compiled program shows as demonstrations.
        choices: what was measured to choose them; empty without exemplars or without a validation set.
        effects: with ``Validation(prune=True)``, by id what each experience adds to the validation score.
        pruned: the experiences that were dropped because of it.
    """

    steps: tuple[StepRecord, ...]
    student: Evaluation | None
    library: ExperienceLibrary
    best_step: int
    usage: Mapping[Role, Usage]
    seconds: float
    stopped_by: str | None = None
    frozen: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()
    exemplars: _UnlessEmpty[Exemplar] = ()
    choices: _UnlessEmpty[Choice] = ()
    effects: Mapping[str, Measured] = field(default_factory=dict)
    pruned: tuple[Experience, ...] = ()
