"""The key of an example: from all of its content, and the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import dspy
import pytest

from tgrpo_dspy import ConfigurationError
from tgrpo_dspy.sampling.examples import items_of


def key(**fields: Any) -> str:
    return items_of([dspy.Example(**fields).with_inputs("question")], "trainset")[0].key


def test_short_values_keep_the_keys_that_finished_runs_were_stored_under() -> None:
    assert key(question="What is 2+2?", answer="4") == "24b691dfd1edbc55"
    mixed = dspy.Example(text="héllo\nworld", tags=["a", "b"], n=3, score=0.5, ok=True, none=None)
    assert items_of([mixed.with_inputs("text", "n")], "trainset")[0].key == "657f290b59afa60d"


def test_every_character_of_a_long_value_counts_though_it_is_shown_shortened() -> None:
    middles = ["a", "b"]
    texts = [f"{'x' * 5000}{middle}{'x' * 5000}" for middle in middles]
    assert key(question=texts[0]) != key(question=texts[1])
    assert key(question=[texts[0]]) != key(question=[texts[1]])
    item = items_of([dspy.Example(question=texts[0]).with_inputs("question")], "trainset")[0]
    assert len(item.inputs["question"]) <= 4000


def test_a_key_is_the_same_in_every_process() -> None:
    script = """
import dspy
from tgrpo_dspy.sampling.examples import items_of
class Thing: pass
fields = {"question": "why?", "thing": Thing(), "things": [Thing()], "names": {"a", "b", "c", "d"}}
print(items_of([dspy.Example(**fields).with_inputs("question")], "trainset")[0].key)
"""
    keys = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1


class Broken:
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_values_that_cannot_be_shown_are_named_by_their_type() -> None:
    items = items_of([dspy.Example(question=Broken(), tags={Broken()}).with_inputs("question")] * 2, "trainset")
    assert items[0].inputs["question"].startswith("<Broken that cannot be shown")
    assert items[1].key == f"{items[0].key}#2"
    with pytest.raises(ConfigurationError, match=r"trainset\[0\] does not say"):
        items_of([dspy.Example(question=Broken())], "trainset")
