"""Frozen settings objects. Each validates itself once, when it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dspy

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.text import shorten, whole

_SHOWN_CHARS = 200


def require(condition: bool, name: str, value: object, rule: str) -> None:
    """Raise ``ConfigurationError`` naming the setting, its value and the rule it breaks."""
    if not condition:
        raise ConfigurationError(f"{name}={shorten(repr(value), _SHOWN_CHARS)} cannot work: {rule}")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the rollouts of a group are drawn and scored.

    Args:
        temperature: sampling temperature while learning, above 0 (paper: 0.7). Evaluation keeps the user's own.
            Models that accept no temperature (OpenAI's reasoning models) keep theirs.
        failure_score: reward of a rollout whose program or answer format failed.
        min_spread: a group is informative when its best reward exceeds its worst by more than this.
        rollout_timeout: seconds one run of the program may take, and its metric again; None: no deadline. A run that
            takes longer gets ``failure_score`` and gives its place free. A thread cannot be killed: it ends with the LM
            call it is in.
        lm_retries: how often a rollout whose LM call failed for a reason that may pass (rate limit, time-out, server
            error) is run again, after DSPy's own retries of the call. Then it is left out of every score.
        retry_delay: seconds before the first of them; each later one waits twice as long, a minute at most.
        max_lm_failures: rollouts in a row that may fail on the LM's side before the run stops.
        solved_score: an example is solved when all its rollouts reach this reward, and the highest one seen so far. It
            is then left out of the next epoch, later of the next two, then of four. None: every epoch samples every
            example, as in the paper.
        max_oversample: most groups of one example in an epoch. Above 1, the places of solved examples go to those whose
            rollouts differed; 1 saves their rollouts.
        resample_temperature: a group whose rollouts all came out the same is sampled once more at this temperature;
            None: it is not, as in the paper.
        trial: ``"randomized"``: every experience is left out of a balanced random half of each group, so that the
            rollouts measure what it does; one that clearly does harm is dropped. ``"off"``: as in the paper.
        trial_level: chance, above 0 and below 0.5, at which an experience without effect is dropped as harmful in a
            whole run.
        answer_field: without ground truth, the output field on which rollouts are to agree; None: every output but
            the reasoning.

    Raises:
        ConfigurationError: when a value is out of range.

    Example:
        >>> Sampling(temperature=1.0).failure_score
        0.0
    """

    temperature: float = 0.7
    failure_score: float = 0.0
    min_spread: float = 0.0
    rollout_timeout: float | None = None
    lm_retries: int = 2
    retry_delay: float = 1.0
    max_lm_failures: int = 10
    solved_score: float | None = 1.0
    max_oversample: int = 1
    resample_temperature: float | None = None
    trial: Literal["off", "randomized"] = "off"
    trial_level: float = 0.05
    answer_field: str | None = None

    def __post_init__(self) -> None:
        require(
            self.temperature > 0,
            "temperature",
            self.temperature,
            "rollouts sampled at temperature 0 are all the same, so no group could teach; use a value above 0",
        )
        require(self.min_spread >= 0, "min_spread", self.min_spread, "use 0 or more")
        timeout = self.rollout_timeout
        require(timeout is None or timeout > 0, "rollout_timeout", timeout, "use seconds above 0, or None")
        require(self.lm_retries >= 0, "lm_retries", self.lm_retries, "use 0 or more")
        require(self.retry_delay >= 0, "retry_delay", self.retry_delay, "use 0 or more seconds")
        require(self.max_lm_failures >= 1, "max_lm_failures", self.max_lm_failures, "use 1 or more")
        require(self.max_oversample >= 1, "max_oversample", self.max_oversample, "use 1 or more")
        hot = self.resample_temperature
        require(
            hot is None or hot > self.temperature, "resample_temperature", hot, "use more than temperature, or None"
        )
        require(self.trial in ("off", "randomized"), "trial", self.trial, "use 'off' or 'randomized'")
        require(0 < self.trial_level < 0.5, "trial_level", self.trial_level, "use a chance above 0 and below 0.5")


@dataclass(frozen=True, kw_only=True)
class Reflection:
    """How groups are turned into edits.

    Args:
        groups_per_call: informative groups shown together in one reflection call, as far as they fit
            ``max_prompt_tokens``. Several groups that fail alike let a model see the rule behind them; 1 shows every
            group alone, as in the paper.
        max_prompt_tokens: bound on the attempts shown in one call (estimated tokens).
        attempts: how often one call is asked, in all, before its groups count as lost. The last attempt asks in a
            simpler form.
        similarity: two lessons this alike (1 to 100, by their words in any order) are treated as overlapping in
            curation.
        embed: turns a list of texts into vectors (``dspy.Embedder`` does); lessons whose cosine reaches ``similarity``
            overlap too. Needs the extra ``embeddings``.
        learn_from_failures: also show groups that fail throughout, beside their right answers or feedback: a rule that
            the model never follows by luck is otherwise never learned. False: informative groups only, as in the paper.
        alike_together: show groups that fail alike in the same call, where not all fit one. False: in batch order.
        experiences_per_group: most edits one group may propose; None: no bound.
        learning_objective: what the lessons are to achieve, in a sentence; part of the task that reflection is shown.
        advantage: a module of your own instead of ``SemanticAdvantage``: called with ``task``, ``attempts`` and
            ``lessons``, it returns a prediction with ``advantage`` and ``edits``.
        curation: a module of your own instead of ``Curation``: called with ``lessons`` and ``proposals``, it returns a
            prediction with ``edits``.

    Raises:
        ConfigurationError: when a value is out of range.
    """

    groups_per_call: int = 8
    max_prompt_tokens: int = 3000
    attempts: int = 3
    similarity: int = 85
    embed: Callable[[list[str]], Sequence[Sequence[float]]] | None = None
    learn_from_failures: bool = True
    alike_together: bool = True
    experiences_per_group: int | None = None
    learning_objective: str = ""
    advantage: dspy.Module | None = None
    curation: dspy.Module | None = None

    def __post_init__(self) -> None:
        require(self.groups_per_call >= 1, "groups_per_call", self.groups_per_call, "use 1 or more")
        require(self.max_prompt_tokens >= 200, "max_prompt_tokens", self.max_prompt_tokens, "use 200 or more")
        require(self.attempts >= 1, "attempts", self.attempts, "use 1 or more")
        require(0 < self.similarity <= 100, "similarity", self.similarity, "use a value in 1..100")
        objective = self.learning_objective
        is_whole = whole(objective) == objective
        require(is_whole, "learning_objective", objective, "it holds half of a character (a lone surrogate)")
        most = self.experiences_per_group
        require(most is None or most >= 1, "experiences_per_group", most, "use 1 or more, or None")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How libraries are scored on the validation set, and what follows from it.

    Args:
        acceptance: ``"best"``: learning goes on from every step, the best library is returned; ``"gate"``: a step whose
            library scores worse on a paired comparison is rolled back; ``"last"``: the last library is returned, as in
            the paper; or an object with a ``decide`` like theirs (``tgrpo_dspy.evaluation.acceptance``).
        repeats: runs per example, for programs whose answers vary; 1 or more.
        prune: at the end, measure what every experience of the chosen library does on the validation set by leaving it
            out, and drop what does harm, if the library without it is not worse. It takes the validation set about
            k + 2 times for k experiences.

    Raises:
        ConfigurationError: when a value is out of range.
    """

    acceptance: Any = "best"
    repeats: int = 1
    prune: bool = False

    def __post_init__(self) -> None:
        require(self.repeats >= 1, "repeats", self.repeats, "use 1 or more")


@dataclass(frozen=True, kw_only=True)
class LibraryLimits:
    """What bounds a library.

    Args:
        words: most words in one experience (paper: 32).
        experiences: most experiences in the library.
        tokens: most tokens (estimated) of the block rendered into one predictor's instructions.
        exemplars: most demonstrations kept beside the experiences. They are the best rollouts of groups whose rewards
            differed, and training examples with their labels where no rollout was right (unless
            ``learn_from_failures`` or ``use_ground_truth`` is off); a valset decides how many of them are worth their
            tokens. 0: none, as in the paper.
        allowed: values that lessons may name although a training example carries them, such as the labels of a
            classification task that occur once. Values that two examples share, and those of a ``Literal`` or an enum
            in the student's signatures, may be named anyway.

    Raises:
        ConfigurationError: when a value is out of range.
    """

    words: int = 32
    experiences: int = 60
    tokens: int = 2000
    exemplars: int = 0
    allowed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("words", "experiences", "tokens"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "use 1 or more")
        require(self.exemplars >= 0, "exemplars", self.exemplars, "use 0 or more")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend. Checked before work starts, so it is exceeded by one piece of work at most, as a rule.

    What is under way is taken to use what its like has used so far, and where that would reach a bound, nothing more is
    started until it is known. Only before the first run or reflection has ended is it not known: its LM calls are then
    taken to be one.

    Work that ``run_dir`` already holds counts as spent, except for ``max_seconds``, which bounds one call of
    ``compile``. None: no bound.

    Args:
        max_rollouts: runs of the program, those of the validation included.
        max_lm_calls: calls that an LM answered; answers from DSPy's cache are free.
        max_tokens: prompt and completion tokens together.
        max_cost: US dollars. Calls whose price is unknown cannot be counted; the report says how many there were.
        max_seconds: wall time.

    Raises:
        ConfigurationError: when a bound is not positive.
    """

    max_rollouts: int | None = None
    max_lm_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(value is None or value > 0, name, value, "use a value above 0, or None for no bound")
