"""Published question sets for web agents, from the Hugging Face hub or from a file with the same columns.

What could be checked, in stored copies of public pages and code; the sets themselves were not downloaded:

* WebWalkerQA is `callanwu/WebWalkerQA` (Apache-2.0). It holds `data/main-00000-of-00001.jsonl`, 680 questions, and
  `data/silver-00000-of-00001.jsonl`, some 15,000 that nobody has verified, as the splits `main` and `silver`. Code that
  reads it uses the columns `question`, `answer`, `root_url` and `info`, and so has a copy of it; its card once showed
  them capitalised, which is accepted too.
* The web set of AFM (Chain-of-Agents) is `PersonalAILab/AFM-WebAgent-RL-Dataset` with the split `train`. Code that
  reads it finds the question in `extra_info.question` and a list of answers in `extra_info.answer`, and leaves out
  questions with more than one answer, which is done here too. Its files, its other columns and what several answers
  mean (each is right, or all are wanted) were not to be seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from programs.own_data import DataFileError, Row, read_rows
from programs.task import MissingDataError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """A published set of questions.

    Args:
        name: what it is called.
        hub: its name on the Hugging Face hub.
        split: the split that is loaded by default.
        question: the keys that lead to the question in a row.
        answer: the keys that lead to the answer, a text or a list of texts.
    """

    name: str
    hub: str
    split: str
    question: tuple[str, ...]
    answer: tuple[str, ...]

    def load(self, file: str | Path | None = None, *, split: str | None = None) -> list[dspy.Example]:
        """The questions as examples with the input ``question`` and the label ``answer``.

        Questions with several answers are left out, since a label is one answer; their number is logged.

        Args:
            file: a ``.jsonl``, ``.json`` or ``.parquet`` file with the columns of the set, instead of the hub.
            split: a split on the hub other than the default one.

        Raises:
            MissingDataError: when the file is not there, or the hub cannot be reached and has not been before.
            DataFileError: for a file that cannot be read, a column that is missing, or a question or an answer that is
                empty; the message names the row.
            ModuleNotFoundError: when the hub is asked and ``datasets`` is not installed.
        """
        if file is None:
            split = split or self.split
            return self._examples(self._from_hub(split), f"{self.hub} ({split})")
        try:
            return self._examples(read_rows(Path(file)), str(file))
        except MissingDataError as error:
            raise MissingDataError(f"{error}. Get {self.name} from {self._page}") from error

    @property
    def _page(self) -> str:
        return f"https://huggingface.co/datasets/{self.hub}"

    def _from_hub(self, split: str) -> Iterator[Row]:
        """The rows on the hub, which ``datasets`` keeps in its own cache."""
        try:
            from datasets import load_dataset
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{self.name} is downloaded by the package datasets, which is not installed: pip install datasets"
            ) from error
        try:
            rows: Iterable[Mapping[str, Any]] = load_dataset(self.hub, split=split)
        except OSError as error:
            raise MissingDataError(
                f"{self.name} could not be downloaded from {self._page} ({error}). Try again when there is a network, "
                "or name a file of it."
            ) from error
        return (Row(f"row {number}", row) for number, row in enumerate(rows, start=1))

    def _examples(self, rows: Iterable[Row], source: str) -> list[dspy.Example]:
        examples, several = [], 0
        for where, values in rows:
            place = f"{source}, {where}"
            (question, *_), answers = _texts(values, self.question, place), _texts(values, self.answer, place)
            if len(answers) > 1:
                several += 1
                continue
            examples.append(dspy.Example(question=question, answer=answers[0]).with_inputs("question"))
        if not examples:
            raise DataFileError(f"{source} has no question with one answer")
        if several:
            _log.info("%s: %d questions with several answers are left out", source, several)
        return examples


WEB_WALKER_QA = QuestionSet(
    name="WebWalkerQA", hub="callanwu/WebWalkerQA", split="main", question=("question",), answer=("answer",)
)
AFM_WEB = QuestionSet(
    name="the web set of AFM",
    hub="PersonalAILab/AFM-WebAgent-RL-Dataset",
    split="train",
    question=("extra_info", "question"),
    answer=("extra_info", "answer"),
)


def _texts(row: Any, keys: tuple[str, ...], place: str) -> list[str]:
    """The text or the texts that a path of keys leads to, none of them empty; the case of keys does not matter."""
    column = ".".join(keys)
    for key in keys:
        names = list(row) if isinstance(row, Mapping) else []
        found = next((name for name in names if name.casefold() == key), None)
        if found is None:
            raise DataFileError(f"{place}: there is no {column}; there is {', '.join(names) or 'nothing'}")
        row = row[found]
    values = row if isinstance(row, list) else [row]
    texts = ["" if value is None else str(value).strip() for value in values]
    if not texts or not all(texts):
        raise DataFileError(f"{place}: {column} is empty")
    return texts
