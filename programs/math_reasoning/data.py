"""The problems: GSM8K, DAPO-Math-17k, AIME 2024 and AIME 2025, from local files or from the Hugging Face hub.

==========  ========================================  ==============  ================================================
set         hub                                       local file      fields, as published
==========  ========================================  ==============  ================================================
GSM8K       openai/gsm8k, config main,                gsm8k/*.jsonl   question; answer, whose final number stands
            splits train (7,473) and test (1,319)                     behind ``####``
DAPO        open-r1/DAPO-Math-17k-Processed, config   dapo/train.*    prompt; solution, the final answer
            all, split train (17,398)
AIME 2024   HuggingFaceH4/aime_2024, split train      aime/*.jsonl    problem; answer, three digits ("033"), besides a
            (30)                                                      worked solution that is not used
AIME 2025   yentinglin/aime_2025, config default,     aime/*.jsonl    problem; answer
            split train (30)
==========  ========================================  ==============  ================================================

DAPO's own publication, BytedTsinghua-SIA/DAPO-Math-17k, repeats every problem about a hundred times, inside a message
(``prompt[0].content``) with instructions around it, the answer in ``reward_model.ground_truth``. The derivative above
has every problem once. A local file may be either of them: what is repeated and what is around a problem is taken off.
Local files may also call the fields question and answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
from rapidfuzz import fuzz

from programs.own_data import DataFileError, Row, read_rows
from programs.task import HELD_OUT, Sizes, Splits, require_file, take

_NEAR = 90.0  # of 100; the most alike of different problems reach 87 in GSM8K, and 82 in AIME
_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a set of problems is published, and how its rows are read.

    Args:
        files: names in the data folder; the first that is there is read.
        hub, config, split: as ``datasets.load_dataset`` takes them.
        problem: the question and the final answer of a row; KeyError for a row without them.
    """

    files: tuple[str, ...]
    hub: str
    config: str
    split: str
    problem: Callable[[Mapping[str, Any]], tuple[str, str]]


def _gsm8k(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row["question"]), str(row["answer"]).rpartition("####")[2].strip().replace(",", "")


def _aime(row: Mapping[str, Any]) -> tuple[str, str]:
    answer = str(row["answer"]).strip()
    return str(row["question"] if "question" in row else row["problem"]), answer.lstrip("0") or "0"


def _dapo(row: Mapping[str, Any]) -> tuple[str, str]:
    question = row["question"] if "question" in row else row["prompt"]
    if not isinstance(question, str):
        question = question[0]["content"]
    if "reward_model" in row:
        answer = row["reward_model"]["ground_truth"]
    else:
        answer = row["answer"] if "answer" in row else row["solution"]
    return question.removeprefix(_BEFORE).removesuffix(_AFTER).strip(), str(answer).strip()


SOURCES: Mapping[str, Source] = {
    "gsm8k train": Source(
        files=("gsm8k/train.jsonl",), hub="openai/gsm8k", config="main", split="train", problem=_gsm8k
    ),
    "gsm8k test": Source(files=("gsm8k/test.jsonl",), hub="openai/gsm8k", config="main", split="test", problem=_gsm8k),
    "dapo": Source(
        files=("dapo/train.parquet", "dapo/train.jsonl"),
        hub="open-r1/DAPO-Math-17k-Processed",
        config="all",
        split="train",
        problem=_dapo,
    ),
    "aime 2024": Source(
        files=("aime/aime_2024.jsonl",), hub="HuggingFaceH4/aime_2024", config="default", split="train", problem=_aime
    ),
    "aime 2025": Source(
        files=("aime/aime_2025.jsonl",), hub="yentinglin/aime_2025", config="default", split="train", problem=_aime
    ),
}
"""The sets by name."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What is learned on, what is tested on, and what is out-of-domain, by the names of ``SOURCES``.

    Args:
        draw: how many problems there are to learn from; None: as many as are asked for.
        sizes: what fits.
    """

    learning: str
    test: str
    ood: tuple[str, ...]
    draw: int | None
    sizes: Sizes


DATASETS: Mapping[str, DataSet] = {
    "gsm8k": DataSet(
        learning="gsm8k train",
        test="gsm8k test",
        ood=("aime 2024", "aime 2025"),
        draw=None,
        sizes=Sizes(train=60, val=40, test=200, ood=60, batch_size=30),
    ),
    # As in the paper of Training-Free GRPO (arXiv 2510.08191), whose hundred problems are another draw.
    "dapo": DataSet(
        learning="dapo",
        test="aime 2024",
        ood=("aime 2025",),
        draw=100,
        sizes=Sizes(train=80, val=20, test=30, ood=30, batch_size=80, epochs=3),
    ),
}
"""What can be learned on, by name."""


def splits(dataset: str, seed: int, sizes: Sizes, data_dir: Path) -> Splits:
    """Problems to learn on, drawn by the seed, and problems to test on, which are the same for every seed.

    What is learned on is like none of the problems of the test and out-of-domain sets, whether these are asked for or
    not, and no two of them are alike.

    Args:
        dataset: one of ``DATASETS``.
        seed: of the draw.
        sizes: how many problems of each; ``DATASETS[dataset].sizes`` fits.
        data_dir: the folder with the local files; what is not in it comes from the hub.

    Raises:
        MissingDataError: when a set is neither there nor can be had from the hub.
        DataFileError: when a row is not what was published.
        ValueError: when there are not so many problems, or there is no such data set.
    """
    if dataset not in DATASETS:
        raise ValueError(f"there is no data set {dataset!r}; there are {', '.join(DATASETS)}")
    parts, wanted = DATASETS[dataset], sizes.train + sizes.val
    test = load(parts.test, data_dir)
    ood = [example for name in parts.ood for example in load(name, data_dir)]
    drawn = _draw(load(parts.learning, data_dir), parts.draw or wanted, seed, apart_from=[*test, *ood])
    if min(sizes.train, sizes.val) < 0 or wanted > len(drawn):
        raise ValueError(
            f"train ({sizes.train}) and val ({sizes.val}) are taken from {len(drawn)} problems to learn from"
        )
    return Splits(
        train=drawn[: sizes.train],
        val=drawn[sizes.train : wanted],
        test=take(test, sizes.test, HELD_OUT),
        ood=take(ood, sizes.ood, HELD_OUT),
    )


def load(name: str, data_dir: Path) -> list[dspy.Example]:
    """All problems of one of ``SOURCES``, each once, with ``question`` as input and the final answer as ``answer``.

    Raises:
        MissingDataError: when the set is neither in the folder nor can be had from the hub.
        DataFileError: when a row is not what was published.
    """
    source = SOURCES[name]
    examples: dict[str, dspy.Example] = {}
    for where, row in _rows(source, data_dir):
        try:
            question, answer = source.problem(row)
        except (KeyError, IndexError, TypeError) as error:
            raise DataFileError(f"{name}, {where}: no problem can be read from {', '.join(row)} ({error!r})") from error
        example = dspy.Example(question=question, answer=answer).with_inputs("question")
        examples.setdefault(_normalised(question), example)
    return list(examples.values())


def _rows(source: Source, data_dir: Path) -> Iterator[Row]:
    paths = [data_dir / file for file in source.files]
    local = next((path for path in paths if path.is_file()), None)
    if local is not None:
        return read_rows(local)
    return (Row(f"row {number}", row) for number, row in enumerate(_from_hub(source, paths[0]), start=1))


def _from_hub(source: Source, path: Path) -> Iterable[Mapping[str, Any]]:
    """The rows on the hub, which ``datasets`` keeps in its own cache; ``path`` is where they could be instead."""
    url = f"https://huggingface.co/datasets/{source.hub}"
    try:
        from datasets import load_dataset

        rows: Iterable[Mapping[str, Any]] = load_dataset(source.hub, source.config, split=source.split)
    except ImportError:
        require_file(path, f"{url} (the package `datasets` downloads it by itself: pip install datasets)")
        raise
    except OSError as error:
        require_file(path, f"{url} (it could not be downloaded from there now: {error})")
        raise
    return rows


def _draw(
    pool: Sequence[dspy.Example], count: int, seed: int, apart_from: Sequence[dspy.Example]
) -> list[dspy.Example]:
    """``count`` problems, or as many as there are, none of them like another one or like those to be apart from."""
    taken = [_normalised(example.question) for example in apart_from]
    drawn: list[dspy.Example] = []
    for example in take(pool, len(pool), seed):
        if len(drawn) == count:
            break
        text = _normalised(example.question)
        if not any(fuzz.token_set_ratio(text, other, score_cutoff=_NEAR) for other in taken):
            taken.append(text)
            drawn.append(example)
    return drawn


def _normalised(question: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", question.casefold()))
