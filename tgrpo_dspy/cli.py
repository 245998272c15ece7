"""The command ``tgrpo``: look at what was learned, compare it, move it, without the code of the program."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tgrpo_dspy import __version__
from tgrpo_dspy.errors import LibraryError, RunDirError, TGRPOError
from tgrpo_dspy.library.codec import FORMAT, from_json, to_json
from tgrpo_dspy.library.comparing import diff
from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.files import load_library, write_atomically
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.library.markdown import from_markdown
from tgrpo_dspy.library.saved import inject_into_state, instructions_in, library_in_state

_MARKDOWN = (".md", ".markdown")
_PICKLES = (".pkl", ".pickle")
_PICKLE_START = b"\x80"
_SOURCE = "a saved program (JSON), a library (JSON or Markdown) or the run_dir of a run"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A library and where it was found.

    Args:
        kind: ``program``, ``library``, ``markdown`` or ``run``.
        state: of a program, the whole saved state.
        step: of a run, the step whose library it is; None: the one that was returned.
    """

    path: Path
    kind: str
    library: ExperienceLibrary
    state: dict[str, Any] | None = None
    step: int | None = None

    @property
    def has_provenance(self) -> bool:
        """Whether counts and evidence are known, and not only ids and texts."""
        return self.kind in ("library", "run")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 for files that cannot be used.

    Raises:
        SystemExit: by ``argparse``, with 2 for wrong usage and 0 after ``--help``.
    """
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough, as ``head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except TGRPOError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename2 or error.filename or 'a file'}: {error.strerror or error}")
    return 0


def _fail(message: str) -> int:
    print(f"tgrpo: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _show(options: argparse.Namespace) -> None:
    source = read_source(options.file)
    if options.json:
        _print_json(_told(source) | {"experiences": [asdict(e) for e in source.library]})
        return
    print(_heading(source))
    for target in sorted({e.target or "" for e in source.library}):
        print(f"\nfor {target}:" if target else "")
        for e in source.library:
            if (e.target or "") == target:
                print(f"  [{e.id}] {e.text}")
                if source.has_provenance:
                    print(f"        {_provenance(e)}")


def _diff(options: argparse.Namespace) -> None:
    before, after = read_source(options.before).library, read_source(options.after).library
    edits = diff(before, after)
    if options.json:
        _print_json([{"operation": e.operation, "ids": e.ids, "text": e.text, "target": e.target} for e in edits])
        return
    for line in (_difference(edit, before) for edit in edits):
        print(line)
    if not edits:
        print("no difference")


def _merge(options: argparse.Namespace) -> None:
    from tgrpo_dspy.reflection.merging import merge

    merged = merge(read_source(options.base).library, *(read_source(path).library for path in options.others))
    _write_library(options.output, merged.library)
    refused = [{"text": r.edit.text, "reason": r.reason} for r in merged.refused]
    evicted = [{"id": e.id, "text": e.text} for e in merged.evicted]
    if options.json:
        _print_json(
            {"output": str(options.output), "experiences": len(merged.library), "refused": refused, "evicted": evicted}
        )
        return
    print(f"{options.output}: {_count(len(merged.library), 'experience')}")
    for refusal in refused:
        print(f"refused: {refusal['text']} ({refusal['reason']})")
    for gone in evicted:
        print(f"evicted for lack of room: [{gone['id']}] {gone['text']}")


def _apply(options: argparse.Namespace) -> None:
    library = read_source(options.library).library
    _change_program(options, library, f"carries {_count(len(library), 'experience')}")


def _strip(options: argparse.Namespace) -> None:
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
        _print_json({"output": str(options.output), "experiences": len(library), "predictors": predictors})
    else:
        print(f"{options.output}: {outcome}, in {', '.join(predictors)}")


def _report(options: argparse.Namespace) -> None:
    from tgrpo_dspy.views.html import html_of_run

    if not options.run_dir.is_dir():
        raise RunDirError(f"{options.run_dir} is not a folder; expected the run_dir of a run")
    output: Path = options.output or options.run_dir / "report.html"
    _write(output, html_of_run(options.run_dir))
    print(output)


def _export(options: argparse.Namespace) -> None:
    library = read_source(options.file).library
    text = _FORMATS[options.format](library)
    if options.output is None:
        sys.stdout.write(text)
    else:
        _write(options.output, text)


def _as_markdown(library: ExperienceLibrary) -> str:
    return library.to_markdown() + "\n"


def _as_text(library: ExperienceLibrary) -> str:
    return "".join(f"{e.target}: {e.text}\n" if e.target else f"{e.text}\n" for e in library)


_FORMATS = {"markdown": _as_markdown, "json": to_json, "text": _as_text}


def read_source(path: Path) -> Source:
    """The library in a file or folder, whatever kind it is of. Nothing is executed: a pickle is refused.

    Raises:
        LibraryError: for a file that holds no library; names it and what is wrong.
        RunDirError: for a folder that is not one of a run.
        OSError: when it cannot be read.
    """
    if path.is_dir():
        return _run(path)
    content = path.read_bytes()
    if path.suffix.lower() in _PICKLES or content.startswith(_PICKLE_START):
        raise LibraryError(f"{path} is a pickle, which runs code when it is loaded; save the program as .json instead")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LibraryError(f"{path} is not a text file: {error}") from error
    return _markdown(path, text) if path.suffix.lower() in _MARKDOWN else _json(path, text)


def _run(folder: Path) -> Source:
    from tgrpo_dspy.views.report import report_from_json

    report_file = folder / "report.json"
    if (folder / "program.pkl").exists():
        raise LibraryError(
            f"{folder} holds a pickled program, which runs code when it is loaded; save it as .json instead"
        )
    if report_file.exists():
        try:
            report = report_from_json(report_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunDirError(f"{report_file} cannot be read: {error}") from error
        measured = {i: effect.mean for i, effect in report.effects.items()}
        members = tuple(replace(e, effect=measured.get(e.id, e.effect)) for e in report.library)
        return Source(path=folder, kind="run", library=replace(report.library, experiences=members))
    steps = sorted((folder / "libraries").glob("step-*.json"))
    if not steps:
        raise RunDirError(
            f"{folder} is not the run_dir of a run that has finished a step: no report.json, no libraries/"
        )
    library = load_library(steps[-1])
    return Source(path=folder, kind="run", library=library, step=int(steps[-1].stem.removeprefix("step-")))


def _markdown(path: Path, text: str) -> Source:
    try:
        return Source(path=path, kind="markdown", library=from_markdown(text))
    except LibraryError as error:
        raise LibraryError(f"{path}: {error}") from error


def _json(path: Path, text: str) -> Source:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LibraryError(f"{path} is not whole JSON ({error}); was it cut off?") from error
    if isinstance(data, dict) and "format" in data:
        return Source(path=path, kind="library", library=from_json(text, str(path)))
    if not isinstance(data, dict) or not instructions_in(data):
        raise LibraryError(
            f"{path} is JSON, but neither a saved program (no predictor with signature.instructions) nor a library "
            f"(no format={FORMAT!r})"
        )
    try:
        return Source(path=path, kind="program", library=library_in_state(data), state=data)
    except LibraryError as error:
        raise LibraryError(f"{path}: {error}") from error


def _write_library(path: Path, library: ExperienceLibrary) -> None:
    _write(path, _as_markdown(library) if path.suffix.lower() in _MARKDOWN else to_json(library))


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


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tgrpo",
        description="Look at libraries of experiences that TrainingFreeGRPO has learned, compare them and move them.",
        epilog="Exit code: 0, or 2 for wrong usage and for files that cannot be used. No pickle is ever loaded.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    show = commands.add_parser("show", help="print a library", description=f"Print the library in {_SOURCE}.")
    show.add_argument("file", metavar="FILE", type=Path, help=_SOURCE)
    _finish(show, _show, json=True)

    compare = commands.add_parser(
        "diff",
        help="how two libraries differ",
        description="What turns library A into library B, by id: + added, - removed, ~ changed.",
    )
    compare.add_argument("before", metavar="A", type=Path, help=_SOURCE)
    compare.add_argument("after", metavar="B", type=Path, help=_SOURCE)
    _finish(compare, _diff, json=True)

    merge = commands.add_parser(
        "merge",
        help="bring libraries together",
        description="Add the experiences of other libraries to A, which keeps its ids. Equal texts become one; lessons "
        "that overlap or contradict each other all stay (tgrpo_dspy.merge can settle them with an LM).",
    )
    merge.add_argument("base", metavar="A", type=Path, help=_SOURCE)
    merge.add_argument("others", metavar="B", type=Path, nargs="+", help="the same, one or more")
    _finish(merge, _merge, json=True, output="library to write: Markdown for .md, else JSON")

    apply = commands.add_parser(
        "apply",
        help="put a library into a saved program",
        description="Write a copy of a saved program whose predictors carry the library, in place of one they carried.",
    )
    apply.add_argument("program", metavar="PROGRAM", type=Path, help="what program.save('….json') wrote")
    apply.add_argument("library", metavar="LIBRARY", type=Path, help=_SOURCE)
    _finish(apply, _apply, json=True, output="program to write")

    strip = commands.add_parser(
        "strip",
        help="take the library out of a saved program",
        description="Write a copy of a saved program without experiences in its instructions.",
    )
    strip.add_argument("program", metavar="PROGRAM", type=Path, help="what program.save('….json') wrote")
    _finish(strip, _strip, json=True, output="program to write")

    report = commands.add_parser(
        "report",
        help="write the HTML page of a run",
        description="Write one self-contained HTML file of a run that has ended, and print where it is.",
    )
    report.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run_dir that compile was given")
    report.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: RUN_DIR/report.html")
    _finish(report, _report)

    export = commands.add_parser(
        "export",
        help="a library as Markdown, JSON or text",
        description="Write a library to standard output or a file. Only JSON keeps counts and evidence.",
    )
    export.add_argument("file", metavar="FILE", type=Path, help=_SOURCE)
    export.add_argument(
        "--format",
        choices=sorted(_FORMATS),
        required=True,
        help="markdown: to edit; json: everything; text: one lesson a line, after its predictor if it is for one",
    )
    export.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")
    _finish(export, _export)
    return parser


def _finish(parser: argparse.ArgumentParser, run: Any, *, json: bool = False, output: str = "") -> None:
    if output:
        parser.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help=output)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=run)
