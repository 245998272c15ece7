"""The models a command runs on."""

from __future__ import annotations

import argparse
import os
from typing import Any

import dspy

from programs.command.application import CommandError
from programs.local_lm import local_lm
from programs.task import Task


def lm_of(args: argparse.Namespace, task: Task) -> dspy.LM:
    """The model that answers: that of ``--lm``, of ``TGRPO_LM``, or a local one.

    Raises:
        CommandError: when it needs a key that is not there.
        LocalRuntimeMissingError, LocalServerError: when the local one cannot be had.
    """
    given = {"temperature": args.temperature, "max_tokens": args.max_tokens}
    options = {name: value for name, value in given.items() if value is not None}
    name = _named(args.lm, "TGRPO_LM")
    if name is None:
        return local_lm(**{**task.local_lm, **options})
    return _hosted(name, options)


def reflection_lm_of(args: argparse.Namespace) -> dspy.LM | None:
    """The model that reflects: that of ``--reflection-lm`` or ``TGRPO_REFLECTION_LM``; None: the one that answers."""
    name = _named(args.reflection_lm, "TGRPO_REFLECTION_LM")
    return None if name is None else _hosted(name, {})


def _named(argument: str | None, variable: str) -> str | None:
    return argument or os.environ.get(variable, "").strip() or None


def _hosted(name: str, options: dict[str, Any]) -> dspy.LM:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for prices when imported
    import litellm

    missing = litellm.validate_environment(name)["missing_keys"]
    if missing:
        raise CommandError(
            f"{name} needs {' and '.join(missing)} in the environment: export it and start again, or leave out --lm "
            "to use the local model"
        )
    return dspy.LM(name, **options)
