"""Every optimizer with the settings its documentation recommends, scaled to a budget in LM calls.

One entry a name: a function of what there is to spend gives the settings, so that the optimizer ends within the budget
by itself, and another runs it with them. In the arithmetic, B is the budget, T and V are the numbers of training and
validation examples, and a run of the program takes P calls, one for each predictor. A prompt that was asked before
costs nothing (DSPy's cache answers it), so every sum is an upper bound. Sources are the optimizers of DSPy 3.4.1.

All are given the same student, LM, reflecting LM and examples. One that takes no validation set is given both sets to
learn from.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dspy

from benchmarks.variants import (
    PAPER,
    Bench,
    Learned,
    MissingFeatureError,
    Ours,
    Student,
    Variant,
    counted,
    spare_calls,
)
from tgrpo_dspy import Budget

Settings = Mapping[str, Any]

_DEMOS = {"max_bootstrapped_demos": 4, "max_labeled_demos": 16}  # the defaults of BootstrapFewShot
_RIGHT = {"metric_threshold": 1.0}  # else any score above 0 makes a demonstration


@dataclass(frozen=True, kw_only=True)
class Means:
    """What there is to spend: LM calls, on so many examples, with so many predictors."""

    budget: int
    train: int
    val: int
    predictors: int = 1

    @classmethod
    def of(cls, bench: Bench) -> Means:
        """The means of a cell.

        Raises:
            MissingFeatureError: when the cell has no budget.
        """
        if bench.budget is None:
            raise MissingFeatureError("the settings follow from a budget; name one with --budget")
        predictors = max(1, len(bench.task.student().predictors()))
        return cls(budget=bench.budget, train=len(bench.data.train), val=len(bench.data.val), predictors=predictors)

    @property
    def runs(self) -> int:
        """Runs of the program that the budget pays."""
        return self.budget // self.predictors


@dataclass(frozen=True)
class Optimizer:
    """One of DSPy's optimizers.

    Args:
        about: what it is, in a sentence.
        settings: its settings for what there is to spend.
        run: makes a program out of a student with these settings.
    """

    about: str
    settings: Callable[[Means], Settings]
    run: Callable[[Bench, dspy.Module, Settings], dspy.Module]

    def learn(self, bench: Bench) -> Learned:
        settings = self.settings(Means.of(bench))
        program, usage = counted("rollout", lambda: self.run(bench, _student(bench), settings))
        return Learned(program=program, settings=settings, usage=usage)


@dataclass(frozen=True)
class Paced:
    """``TrainingFreeGRPO`` at the pace that a budget allows."""

    ours: Ours

    @property
    def about(self) -> str:
        return self.ours.about

    def learn(self, bench: Bench) -> Learned:
        pace = training_free_grpo(Means.of(bench), bench.sizes.group_size, bench.sizes.batch_size)
        return self.ours.learn(replace(bench, sizes=replace(bench.sizes, **pace)))


# --- TrainingFreeGRPO -------------------------------------------------------------------------------------------------


def training_free_grpo(means: Means, group_size: int, batch_size: int) -> dict[str, int]:
    """Epochs and batches that use the budget up; ``Budget(max_lm_calls=B)`` ends the run.

    An epoch takes T * group_size runs when every example is sampled. At least two steps must fit beside scoring the
    student and a library.
    """
    room = max(0, means.runs - 2 * means.val)
    return {
        "batch_size": max(1, min(batch_size, room // (2 * group_size))),
        "epochs": min(10, 1 + math.ceil(means.runs / (means.train * group_size))),
    }


# --- Demonstrations ---------------------------------------------------------------------------------------------------


def labeled_few_shot(means: Means) -> Settings:
    """No calls (vanilla.py). k is its default."""
    return {"k": 16}


def _run_labeled(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    return dspy.LabeledFewShot(**settings).compile(student, trainset=_all(bench))


def bootstrap_few_shot(means: Means) -> Settings:
    """At most one run an example (bootstrap.py: max_rounds=1): T + V runs, or fewer examples. Defaults otherwise."""
    return {**_DEMOS, **_RIGHT, "examples": min(means.train + means.val, means.runs)}


def _run_bootstrap(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    examples, given = _apart(settings, "examples")
    optimizer = dspy.BootstrapFewShot(metric=_score_of(bench), **given)
    return optimizer.compile(student, trainset=_all(bench)[:examples])


def bootstrap_random_search(means: Means) -> Settings:
    """C candidates beside three fixed ones, all scored: (C + 3) V runs; all but two bootstrapped: (C + 1) T runs.

    (random_search.py: seeds -3..C-1, of which -3 is the student and -2 has labelled examples only.) C is 16 by default.
    """
    candidates = (means.runs - 3 * means.val - means.train) // (means.val + means.train)
    _needs(candidates >= 0, means, means.predictors * (3 * means.val + means.train))
    return {**_DEMOS, **_RIGHT, "num_candidate_programs": min(16, candidates)}


def _run_random_search(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    optimizer = dspy.BootstrapFewShotWithRandomSearch(metric=_score_of(bench), num_threads=bench.threads, **settings)
    return optimizer.compile(student, trainset=bench.data.train, valset=bench.data.val)


def knn_few_shot(means: Means) -> Settings:
    """No calls while it learns; its program bootstraps the k neighbours of every input it is given (knn_fewshot.py)."""
    return {"k": 3, **_DEMOS, **_RIGHT}


def _run_knn(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    k, given = _apart(settings, "k")
    vectorizer = dspy.Embedder(_trigrams)
    optimizer = dspy.KNNFewShot(k=k, trainset=_all(bench), vectorizer=vectorizer, metric=_score_of(bench), **given)
    return optimizer.compile(student)


# --- Instructions -----------------------------------------------------------------------------------------------------


def copro(means: Means) -> Settings:
    """``breadth`` prompts a round over ``depth`` rounds, all scored on all examples (copro_optimizer.py).

    Proposing: depth * breadth answers a predictor. Scoring: with one predictor depth * breadth candidates; with
    several, every round scores the candidates of all rounds again: P * breadth * depth (depth + 1) / 2. The defaults
    are breadth 10 and depth 3; the breadth gives way first.
    """
    several = means.predictors > 1
    for depth in (3, 2, 1):
        scored = depth * (depth + 1) // 2 * means.predictors if several else depth
        per_breadth = means.predictors * (depth + scored * (means.train + means.val))
        if means.budget // per_breadth >= 2:
            return {"breadth": min(10, means.budget // per_breadth), "depth": depth}
    _needs(False, means, 2 * per_breadth)
    raise AssertionError


def _run_copro(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    optimizer = dspy.COPRO(prompt_model=_reflecting(bench), metric=_score_of(bench), **settings)
    quietly = {"num_threads": bench.threads, "display_progress": False, "display_table": 0}
    return optimizer.compile(student, trainset=_all(bench), eval_kwargs=quietly)


def infer_rules(means: Means) -> Settings:
    """Bootstrapping: T runs. Each candidate: P answers with rules, and V runs (infer_rules.py). 10 by default."""
    candidates = (means.budget - means.predictors * means.train) // (means.predictors * (1 + means.val))
    _needs(candidates >= 1, means, means.predictors * (means.train + 1 + means.val))
    return {**_DEMOS, **_RIGHT, "num_candidates": min(10, candidates), "num_rules": 10}


def _run_infer_rules(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    teacher = {"teacher_settings": {"lm": bench.reflection_lm}} if bench.reflection_lm else {}
    optimizer = dspy.InferRules(metric=_score_of(bench), num_threads=bench.threads, **teacher, **settings)
    return optimizer.compile(student, trainset=bench.data.train, valset=bench.data.val)


def gepa(means: Means) -> Settings:
    """``max_metric_calls`` runs of the program, looked at between iterations, and a reflection every six of them.

    (gepa: an iteration runs a minibatch of 3 with the parent and with the child, and a child that is better on the
    V validation examples; so it ends up to V + 5 runs late.)
    """
    late = means.val + 5
    calls = math.floor((means.budget - means.predictors * late - 2) / (means.predictors + 1 / 6))
    _needs(calls > means.val, means, means.predictors * (late + means.val) + means.val // 6 + 4)
    return {"max_metric_calls": calls}


def _run_gepa(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    reflecting = _reflecting(bench).copy(temperature=1.0)  # as its documentation asks for
    optimizer = dspy.GEPA(
        metric=bench.task.metric, reflection_lm=reflecting, num_threads=bench.threads, seed=bench.seed, **settings
    )
    return optimizer.compile(student, trainset=bench.data.train, valset=bench.data.val)


# --- Both -------------------------------------------------------------------------------------------------------------


def mipro_v2(means: Means) -> Settings:
    """N candidates of both kinds and t trials, t as it recommends for N (mipro_optimizer_v2.py).

    Demonstrations: N - 2 bootstraps of T runs. A summary of the data: ceil(T / 10) + 1 answers, 11 at most. Proposals:
    3 answers a candidate and predictor. Scoring: the student and t trials, V runs each, in full as it does by itself
    for 50 examples or fewer. Its automatic settings begin at N = 6; 18 is its "heavy".
    """
    for candidates in range(18, 2, -1):
        trials = int(max(2 * 2 * means.predictors * math.log2(candidates), 1.5 * candidates))
        bootstraps = means.predictors * (candidates - 2) * means.train
        proposals = min(11, math.ceil(means.train / 10) + 1) + 3 * candidates * means.predictors
        calls = bootstraps + proposals + means.predictors * (trials + 1) * means.val
        if calls <= means.budget:
            return {"num_candidates": candidates, "num_trials": trials, "auto": None, "minibatch": False}
    _needs(False, means, calls)
    raise AssertionError


def _run_mipro(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    _require_package("optuna", "MIPROv2")
    at_compile = {name: settings[name] for name in ("num_trials", "minibatch")}
    optimizer = dspy.MIPROv2(
        metric=_score_of(bench),
        prompt_model=_reflecting(bench),
        task_model=bench.lm,
        num_candidates=settings["num_candidates"],
        auto=settings["auto"],
        num_threads=bench.threads,
        seed=bench.seed + 1,  # 0 stands for its default
        **_RIGHT,
    )
    return optimizer.compile(student, trainset=bench.data.train, valset=bench.data.val, **at_compile)


def simba(means: Means) -> Settings:
    """S steps of b examples with C candidates, then C + 1 programs on all examples (simba.py).

    A step: C * b runs, C + 1 answers with advice, (C + 1) b runs. The defaults are b 32, C 6, S 8.
    """
    examples = means.train + means.val
    for candidates, steps in ((6, 8), (6, 4), (6, 3), (6, 2), (4, 2), (3, 2), (3, 1), (2, 1)):
        last = means.predictors * (min(steps, candidates) + 1) * examples
        room = (means.budget - last) // steps - (candidates + 1)
        size = min(32, examples, room // (means.predictors * (2 * candidates + 1)))
        if size >= min(4, examples):
            return {"bsize": size, "num_candidates": candidates, "max_steps": steps}
    _needs(False, means, last + 3 + means.predictors * 5 * min(4, examples))
    raise AssertionError


def _run_simba(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    optimizer = dspy.SIMBA(
        metric=bench.task.metric, prompt_model=_reflecting(bench), num_threads=bench.threads, **settings
    )
    return optimizer.compile(student, trainset=_all(bench), seed=bench.seed)


def better_together(means: Means) -> Settings:
    """Ours, then demonstrations for what it returns (bettertogether.py).

    The student and the program after either step are scored: 3 V runs. BootstrapFewShot takes T. The rest is ours.
    """
    ours = means.budget - means.predictors * (3 * means.val + means.train)
    _needs(ours >= means.predictors * means.val * 2, means, means.predictors * (5 * means.val + means.train))
    return {"strategy": "lessons -> demonstrations", "max_lm_calls": ours}


def _run_better_together(bench: Bench, student: dspy.Module, settings: Settings) -> dspy.Module:
    means = replace(Means.of(bench), budget=settings["max_lm_calls"])
    pace = training_free_grpo(means, bench.sizes.group_size, bench.sizes.batch_size)
    lessons = Ours("").optimizer(replace(bench, sizes=replace(bench.sizes, **pace)))
    budget = Budget(max_lm_calls=spare_calls(settings["max_lm_calls"], bench))
    student.set_lm(bench.lm)  # it wants every predictor to have one
    optimizer = dspy.BetterTogether(
        _score_of(bench),
        lessons=lessons,
        demonstrations=dspy.BootstrapFewShot(metric=_score_of(bench), **_DEMOS, **_RIGHT),
    )
    return optimizer.compile(
        student,
        trainset=bench.data.train,
        valset=bench.data.val,
        strategy=settings["strategy"],
        num_threads=bench.threads,
        seed=bench.seed,
        optimizer_compile_args={"lessons": {"budget": budget, "run_dir": bench.run_dir, "verbose": False}},
    )


# --- The list ---------------------------------------------------------------------------------------------------------

OPTIMIZERS: Mapping[str, Variant] = {
    "student": Student("the program as it is"),
    "tgrpo_paper": Paced(Ours("TrainingFreeGRPO, the paper's loop", PAPER, validates=False)),
    "tgrpo": Paced(Ours("TrainingFreeGRPO, all defaults")),
    "tgrpo_exemplars": Paced(Ours("TrainingFreeGRPO with up to four exemplars", {"limits": {"exemplars": 4}})),
    "LabeledFewShot": Optimizer("labelled examples", labeled_few_shot, _run_labeled),
    "BootstrapFewShot": Optimizer("own right answers and labelled examples", bootstrap_few_shot, _run_bootstrap),
    "RandomSearch": Optimizer("the best of such sets", bootstrap_random_search, _run_random_search),
    "KNNFewShot": Optimizer("such examples near the input", knn_few_shot, _run_knn),
    "COPRO": Optimizer("instructions, proposed round by round", copro, _run_copro),
    "InferRules": Optimizer("rules induced from labelled examples", infer_rules, _run_infer_rules),
    "GEPA": Optimizer("instructions, evolved by reflection", gepa, _run_gepa),
    "MIPROv2": Optimizer("instructions and demonstrations, by Bayesian search", mipro_v2, _run_mipro),
    "SIMBA": Optimizer("rules and demonstrations from varying examples", simba, _run_simba),
    "BetterTogether": Optimizer("TrainingFreeGRPO, then BootstrapFewShot", better_together, _run_better_together),
}


def _student(bench: Bench) -> dspy.Module:
    """The student, its signatures its own: InferRules writes into the class that all students share."""
    student = bench.task.student()
    for predictor in student.predictors():
        predictor.signature = predictor.signature.with_instructions(predictor.signature.instructions)
    return student


def _all(bench: Bench) -> list[dspy.Example]:
    return [*bench.data.train, *bench.data.val]


def _reflecting(bench: Bench) -> Any:
    return bench.reflection_lm or bench.lm


def _score_of(bench: Bench) -> Callable[..., float]:
    """The metric as a number: most optimizers take an object with feedback for a success."""

    def metric(gold: dspy.Example, pred: Any, trace: Any = None) -> float:
        result = bench.task.metric(gold, pred, trace)
        return float(getattr(result, "score", result))

    return metric


def _trigrams(texts: Sequence[str]) -> Any:
    """Vectors of the texts, by the triples of characters in them."""
    import numpy as np

    vectors = np.zeros((len(texts), 256), dtype=np.float32)
    for row, text in zip(vectors, texts, strict=True):
        for start in range(len(text) - 2):
            row[zlib.crc32(text[start : start + 3].lower().encode()) % 256] += 1
    return vectors


def _apart(settings: Settings, name: str) -> tuple[Any, dict[str, Any]]:
    return settings[name], {key: value for key, value in settings.items() if key != name}


def _require_package(package: str, optimizer: str) -> None:
    try:
        __import__(package)
    except ImportError as error:
        raise MissingFeatureError(f"{optimizer} needs the package {package}: pip install {package}") from error


def _needs(enough: bool, means: Means, calls: int) -> None:
    if not enough:
        raise MissingFeatureError(
            f"it needs a budget of about {calls} LM calls for {means.train} training and {means.val} validation "
            f"examples, and has {means.budget}"
        )
