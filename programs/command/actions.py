"""What the command does: compile, evaluate, compare."""

from __future__ import annotations

import argparse
from pathlib import Path

import dspy
from rich.console import Console

from programs.command import showing
from programs.command.application import CommandError
from programs.command.showing import Scored
from programs.task import Splits, Task
from tgrpo_dspy import (
    Budget,
    CompileReport,
    Estimate,
    ExperienceLibrary,
    LibraryLimits,
    Performance,
    TrainingFreeGRPO,
    evaluate,
    inject,
    load_library,
    retarget,
    save_library,
)

HELD_OUT, OUT_OF_DOMAIN = "held-out", "out-of-domain"


def compile_program(
    task: Task, data: Splits, args: argparse.Namespace, reflection_lm: dspy.LM | None, console: Console
) -> None:
    """Learn a library and save the compiled program."""
    showing.task(console, task, data)
    _learn(task, data, args, reflection_lm, console)


def evaluate_program(
    task: Task, data: Splits, args: argparse.Namespace, reflection_lm: dspy.LM | None, console: Console
) -> None:
    """Score the student, or the program that was saved, on the held-out and the out-of-domain examples."""
    program, label = _asked_program(task, args)
    scored = _score({label: program}, task, data, args, console)
    showing.scores(console, scored, args.repeats)
    showing.save_scores(args.run_dir / "evaluation.json", scored)
    console.print(f"\nSaved evaluation.json in {args.run_dir}/")


def compare(
    task: Task, data: Splits, args: argparse.Namespace, reflection_lm: dspy.LM | None, console: Console
) -> None:
    """Compile, then score student, compiled and few-shot program on the same unseen examples."""
    showing.task(console, task, data)
    programs = {"student": task.student(), "compiled": _learn(task, data, args, reflection_lm, console)}
    if args.few_shot:
        few_shot = dspy.LabeledFewShot(k=args.few_shot)
        programs[f"LabeledFewShot(k={args.few_shot})"] = few_shot.compile(task.student(), trainset=data.train)
    scored = _score(programs, task, data, args, console)
    showing.scores(console, scored, args.repeats)
    showing.save_scores(args.run_dir / "comparison.json", scored)
    console.print(f"\nSaved comparison.json in {args.run_dir}/")


def estimate(task: Task, data: Splits, args: argparse.Namespace) -> Estimate:
    """What compiling would take."""
    return _optimizer(task, args, None).estimate(
        task.student(), trainset=data.train, valset=data.val or None, budget=_budget(args)
    )


def _learn(
    task: Task, data: Splits, args: argparse.Namespace, reflection_lm: dspy.LM | None, console: Console
) -> dspy.Module:
    optimizer = _optimizer(task, args, reflection_lm)
    console.print(f"{estimate(task, data, args)}\n", highlight=False, markup=False)
    compiled = optimizer.compile(
        task.student(),
        trainset=data.train,
        valset=data.val or None,
        run_dir=args.run_dir / "compile",
        budget=_budget(args),
        verbose=not args.quiet,
    )
    report = optimizer.report
    assert report is not None
    _save(compiled, report, args.run_dir)
    showing.library(console, report)
    console.print(f"Saved compiled.json, library.json and experiences.md in {args.run_dir}/, the run in compile/")
    return compiled


def _optimizer(task: Task, args: argparse.Namespace, reflection_lm: dspy.LM | None) -> TrainingFreeGRPO:
    scale = {name: getattr(args, name) for name in ("group_size", "epochs", "batch_size")}
    return TrainingFreeGRPO(
        metric=task.metric,
        **{name: getattr(task.sizes, name) if value is None else value for name, value in scale.items()},
        seed=args.seed,
        num_threads=args.threads,
        reflection_lm=reflection_lm,
        use_ground_truth=not args.no_ground_truth,
        limits=LibraryLimits(exemplars=args.exemplars, allowed=task.allowed),
    )


def _budget(args: argparse.Namespace) -> Budget | None:
    if args.max_lm_calls is None and args.max_cost is None:
        return None
    return Budget(max_lm_calls=args.max_lm_calls, max_cost=args.max_cost)


def _asked_program(task: Task, args: argparse.Namespace) -> tuple[dspy.Module, str]:
    """The program that ``evaluate`` was asked to score, and what to call it."""
    program, label = task.student(), "student"
    if args.program is not None:
        if args.program.suffix != ".json":
            raise CommandError(f"--program must be a .json file that was saved by compile, got {args.program}")
        program.load(args.program)
        label = args.program.stem
    if args.library is not None:
        program, label = inject(program, _library_for(program, args.library)), f"{label} with {args.library.stem}"
    return program, label


def _library_for(program: dspy.Module, file: Path) -> ExperienceLibrary:
    """The library of a file; a lesson for a predictor that this program does not have is for the whole program."""
    library, names = load_library(file), {name for name, _ in program.named_predictors()}
    return retarget(library, {e.target: None for e in library if e.target is not None and e.target not in names})


def _score(
    programs: dict[str, dspy.Module], task: Task, data: Splits, args: argparse.Namespace, console: Console
) -> Scored:
    """Every program on every set that has examples."""
    sets = {HELD_OUT: data.test, OUT_OF_DOMAIN: data.ood}
    scored: dict[str, dict[str, Performance]] = {name: {} for name, examples in sets.items() if examples}
    for name, by_program in scored.items():
        for label, program in programs.items():
            runs = len(sets[name]) * args.repeats
            with showing.progress(console, f"{label}, {name}", runs, quiet=args.quiet) as listener:
                by_program[label] = evaluate(
                    program,
                    devset=sets[name],
                    metric=task.metric,
                    repeats=args.repeats,
                    num_threads=args.threads,
                    seed=args.seed,
                    listeners=[listener],
                )
    return scored


def _save(compiled: dspy.Module, report: CompileReport, folder: Path) -> None:
    compiled.save(folder / "compiled.json")
    save_library(report.library, folder / "library.json")
    (folder / "experiences.md").write_text(report.library.to_markdown() + "\n", encoding="utf-8")
