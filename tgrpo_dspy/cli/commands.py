"""What the commands do."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tgrpo_dspy.cli.sources import MARKDOWN, Source, read_source
from tgrpo_dspy.errors import LibraryError, RunDirError
from tgrpo_dspy.library import comparing
from tgrpo_dspy.library.codec import to_json
from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.files import write_atomically
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.library.saved import inject_into_state, instructions_in


def show(options: argparse.Namespace) -> None:
    """Print a library."""
    source = read_source(options.file)
    if options.json:
        print_json(_told(source) | {"experiences": [asdict(e) for e in source.library]})
        return
    print(_heading(source))
    for target in sorted({e.target or "" for e in source.library}):
        print(f"\nfor {target}:" if target else "")
        for e in source.library:
            if (e.target or "") == target:
                print(f"  [{e.id}] {e.text}")
                if source.has_provenance:
                    print(f"        {_provenance(e)}")


def diff(options: argparse.Namespace) -> None:
    """Print how two libraries differ."""
    before, after = read_source(options.before).library, read_source(options.after).library
    edits = comparing.diff(before, after)
    if options.json:
        print_json([{"operation": e.operation, "ids": e.ids, "text": e.text, "target": e.target} for e in edits])
        return
    for line in (_difference(edit, before) for edit in edits):
        print(line)
    if not edits:
        print("no difference")


def merge(options: argparse.Namespace) -> None:
    """Write libraries as one."""
    from tgrpo_dspy.reflection import merging

    merged = merging.merge(read_source(options.base).library, *(read_source(path).library for path in options.others))
    _write_library(options.output, merged.library)
    refused = [{"text": r.edit.text, "reason": r.reason} for r in merged.refused]
    evicted = [{"id": e.id, "text": e.text} for e in merged.evicted]
    if options.json:
        print_json(
            {"output": str(options.output), "experiences": len(merged.library), "refused": refused, "evicted": evicted}
        )
        return
    print(f"{options.output}: {_count(len(merged.library), 'experience')}")
    for refusal in refused:
        print(f"refused: {refusal['text']} ({refusal['reason']})")
    for gone in evicted:
        print(f"evicted for lack of room: [{gone['id']}] {gone['text']}")


def apply(options: argparse.Namespace) -> None:
    """Write a program with a library."""
    library = read_source(options.library).library
    _change_program(options, library, f"carries {_count(len(library), 'experience')}")


def strip(options: argparse.Namespace) -> None:
    """Write a program without its library."""
    _change_program(options, ExperienceLibrary(), "carries no experience")


def _change_program(options: argparse.Namespace, library: ExperienceLibrary, outcome: str) -> None:
    source = read_source(options.program)
    if source.state is None:
        raise LibraryError(f"{options.program} is not a saved program; expected what program.save('….json') wrote")
    try:
        state = inject_into_state(source.state, library)
    except LibraryError as error:
        raise LibraryError(f"{options.program}: {error}") from error
    _write(options.output, json.dumps(state, ensure_ascii=False, indent=2))
    predictors = list(instructions_in(state))
    if options.json:
        print_json({"output": str(options.output), "experiences": len(library), "predictors": predictors})
    else:
        print(f"{options.output}: {outcome}, in {', '.join(predictors)}")


def report(options: argparse.Namespace) -> None:
    """Write the page of a run."""
    from tgrpo_dspy.views.html import html_of_run

    if not options.run_dir.is_dir():
        raise RunDirError(f"{options.run_dir} is not a folder; expected the run_dir of a run")
    output: Path = options.output or options.run_dir / "report.html"
    _write(output, html_of_run(options.run_dir))
    print(output)


def export(options: argparse.Namespace) -> None:
    """Write a library in another form."""
    library = read_source(options.file).library
    text = FORMATS[options.format](library)
    if options.output is None:
        sys.stdout.write(text)
    else:
        _write(options.output, text)


def _as_markdown(library: ExperienceLibrary) -> str:
    return library.to_markdown() + "\n"


def _as_text(library: ExperienceLibrary) -> str:
    return "".join(f"{e.target}: {e.text}\n" if e.target else f"{e.text}\n" for e in library)


FORMATS = {"markdown": _as_markdown, "json": to_json, "text": _as_text}


def _write_library(path: Path, library: ExperienceLibrary) -> None:
    _write(path, _as_markdown(library) if path.suffix.lower() in MARKDOWN else to_json(library))


def _write(path: Path, text: str) -> None:
    if path.is_dir():
        raise LibraryError(f"{path} is a folder; name a file to write")
    if not path.parent.is_dir():
        raise LibraryError(f"{path} cannot be written: there is no folder {path.parent}")
    write_atomically(path, text)


def _told(source: Source) -> dict[str, Any]:
    told: dict[str, Any] = {"source": str(source.path), "kind": source.kind}
    if source.state is not None:
        told["predictors"] = list(instructions_in(source.state))
    if source.step is not None:
        told["step"] = source.step
    return told


def _heading(source: Source) -> str:
    told = f"{source.path} ({source.kind}): {_count(len(source.library), 'experience')}"
    if source.state is not None:
        told += f"; predictors: {', '.join(instructions_in(source.state))}"
    return told if source.step is None else f"{told}; the run has not ended, this is its step {source.step}"


def _provenance(e: Experience) -> str:
    parts = ["from before the run" if e.created == 0 else f"step {e.created}"]
    parts += [f"changed in step {e.changed}"] if e.changed > e.created else []
    parts += [f"proposed {_count(e.proposed, 'time')}"]
    parts += [f"contradicted {_count(e.contradicted, 'time')}"] if e.contradicted else []
    parts += [_count(len(e.evidence), "group")] if e.evidence else []
    parts += [f"effect {e.effect:+.3f}"] if e.effect is not None else []
    return ", ".join(parts)


def _difference(edit: Edit, before: ExperienceLibrary) -> str:
    where = f" (for {edit.target})" if edit.target else ""
    if edit.operation == "ADD":
        return f"+ {edit.text}{where}"
    old = before[edit.ids[0]]
    if edit.operation == "DELETE":
        return f"- [{old.id}] {old.text}" + (f" (for {old.target})" if old.target else "")
    moved = "" if (old.target or "") == edit.target else f" (for {edit.target or 'all'}, was for {old.target or 'all'})"
    words = old.text if old.text == edit.text else f"{old.text} -> {edit.text}"
    return f"~ [{old.id}] {words}{moved}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def print_json(value: Any) -> None:
    """Print a value for programs."""
    print(json.dumps(value, ensure_ascii=False, indent=2))
