"""How long the prompts of a predictor are, without sending one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from tgrpo_dspy.library.limits import estimate_tokens


def prompt_tokens(
    signature: Any, demos: Sequence[Any], inputs: Mapping[str, Any], adapter: dspy.Adapter | None = None
) -> int:
    """Tokens (estimated) of the prompt that an adapter writes; images and the like count nothing.

    Args:
        signature, demos: a predictor's.
        inputs: values of its input fields; those that are missing count nothing.
        adapter: None: the one that is configured.

    Example:
        >>> signature = dspy.Signature("question -> answer")
        >>> 0 < prompt_tokens(signature, [], {}) < prompt_tokens(signature, [], {"question": "why? " * 20})
        True
    """
    adapter = adapter or dspy.settings.adapter or dspy.ChatAdapter()
    try:
        with dspy.context(callbacks=[]):
            messages = adapter.format(signature, list(demos), dict(inputs))
    except Exception:  # an adapter of the user's own, or a field that needs a value only a run has
        return estimate_tokens(f"{signature.instructions} {signature.fields} {demos} {inputs}")
    return sum(estimate_tokens(_text(message["content"])) for message in messages)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if isinstance(part, dict))
