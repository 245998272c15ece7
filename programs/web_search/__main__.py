"""``python -m programs.web_search``: compile, evaluate or compare an agent that searches a web."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from programs.command import Application, CommandError, run
from programs.task import HELD_OUT, MissingDataError, Sizes, Splits, Task, take
from programs.web_search.engines import engine_from_env
from programs.web_search.local_web import questions
from programs.web_search.local_web.stable import stable_web
from programs.web_search.metric import Judge, exact_answer
from programs.web_search.pages import PageReader
from programs.web_search.program import agent
from programs.web_search.question_sets import AFM_WEB, WEB_WALKER_QA, QuestionSet
from programs.web_search.search import SearchEngine, SearchError
from programs.web_search.tools import Reader

_LOCAL = "local"
_PUBLISHED = {"webwalkerqa": WEB_WALKER_QA, "afm": AFM_WEB}
_SIZES = Sizes(train=16, val=12, test=20, ood=10, batch_size=8, group_size=4)


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("web")
    group.add_argument(
        "--web",
        choices=(_LOCAL, "live"),
        default=_LOCAL,
        help="the local web of country pages (default), or the live one: Tavily or Serper by their keys, else ddgs",
    )
    group.add_argument(
        "--questions",
        choices=("factbook", *_PUBLISHED),
        default="factbook",
        help="about the local web (default), or a published set, from the hub or --questions-file",
    )
    group.add_argument("--questions-file", type=Path, metavar="FILE", help="a file of the published set")
    group.add_argument("--judge", action="store_true", help="let the model decide whether an answer is right")
    group.add_argument(
        "--max-iters", type=int, default=6, metavar="N", help="turns of the agent (default: %(default)s)"
    )
    group.add_argument(
        "--page-chars", type=int, default=2500, metavar="N", help="characters of a page at once (default: %(default)s)"
    )


@contextmanager
def _open(args: argparse.Namespace) -> Iterator[Task]:
    if args.web == _LOCAL and args.questions != "factbook":
        raise CommandError(f"the local web cannot answer the questions of {args.questions}: add --web live")
    if args.web != _LOCAL:
        with PageReader() as reader:
            yield _task(args, engine_from_env(), reader)
        return
    with stable_web() as web:
        yield _task(args, web, web)


def _task(args: argparse.Namespace, engine: SearchEngine, reader: Reader) -> Task:
    published = _PUBLISHED.get(args.questions)
    source = "CIA World Factbook (public domain) as a local web; out-of-domain: Africa"
    return Task(
        name="web_search",
        source=source if published is None else f"{published.name}; no out-of-domain set",
        student=lambda: agent(engine, reader, max_iters=args.max_iters, page_chars=args.page_chars),
        metric=Judge() if args.judge else exact_answer,
        splits=_local_splits if published is None else lambda seed, sizes: _published(published, args, seed, sizes),
        sizes=_SIZES if published is None else Sizes(train=60, val=40, test=100, ood=0, batch_size=50, group_size=3),
        local_lm={"context": 8192},
    )


def _local_splits(seed: int, sizes: Sizes) -> Splits:
    return questions.splits(seed, train=sizes.train, val=sizes.val, test=sizes.test, ood=sizes.ood)


def _published(published: QuestionSet, args: argparse.Namespace, seed: int, sizes: Sizes) -> Splits:
    """Test questions are the same for every seed; the seed draws the others."""
    if sizes.ood:
        raise MissingDataError(f"{published.name} has no out-of-domain set: use --ood 0, or a file of yours")
    found = published.load(args.questions_file)
    test = take(found, sizes.test, HELD_OUT)
    rest = [example for example in found if not any(example is other for other in test)]
    drawn = take(rest, sizes.train + sizes.val, seed)
    return Splits(train=drawn[: sizes.train], val=drawn[sizes.train :], test=test, ood=[])


APPLICATION = Application(
    name="web_search",
    about="Answers questions by searching a web and reading its pages.",
    open=_open,
    inputs=("question",),
    outputs=("answer",),
    add_options=_add_options,
    errors=(SearchError,),
)

if __name__ == "__main__":
    sys.exit(run(APPLICATION))
