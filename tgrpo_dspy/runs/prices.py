"""What an LM call cost, by the price lists in DSPy and LiteLLM. Nothing is fetched, and LiteLLM is not imported."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_METADATA = "dspy.clients.model_metadata"
_INPUT, _OUTPUT = "input_cost_per_token", "output_cost_per_token"
_LONG_PROMPT = re.compile(rf"{_INPUT}_above_(\d+)k_tokens")


def price(model: str, usage: Mapping[str, Any]) -> float | None:
    """US dollars of one call, or None when its price is not known.

    The price is found by the model's name, as it was given to ``dspy.LM``. A deployment that no price list knows is
    priced by ``litellm.register_model({"provider/model": {"input_cost_per_token": …, "output_cost_per_token": …}})``,
    which overrides a known price too.

    Args:
        model: such as ``"openai/gpt-4o-mini"``.
        usage: ``prompt_tokens`` and ``completion_tokens`` as DSPy reports them, with the parts of them that have a
            rate of their own (cached, reasoning and audio tokens) in ``prompt_tokens_details`` and
            ``completion_tokens_details``.

    Example:
        >>> round(price("openai/gpt-4o-mini", {"prompt_tokens": 1000, "completion_tokens": 100}), 6)
        0.00021
        >>> price("my/server", {"prompt_tokens": 1000, "completion_tokens": 100}) is None
        True
    """
    rates, billed = _rates(model), _billed(usage)
    if not rates or not billed:
        return None
    tier = _tier(rates, usage["prompt_tokens"])
    costs = [_cost(rates, kind, tier, tokens) for kind, tokens in billed.items() if tokens]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _billed(usage: Mapping[str, Any]) -> dict[str, int] | None:
    """The tokens of a call by the rate they are billed at; None when the provider did not report them."""
    if usage.get("prompt_tokens") is None or usage.get("completion_tokens") is None:
        return None
    prompt, completion = (dict(usage.get(f"{part}_tokens_details") or {}) for part in ("prompt", "completion"))
    written = prompt.get("cache_creation_tokens") or usage.get("cache_creation_input_tokens")
    special = {
        "cache_read_input_token_cost": prompt.get("cached_tokens"),
        "cache_creation_input_token_cost": written,
        "input_cost_per_audio_token": prompt.get("audio_tokens"),
        "output_cost_per_reasoning_token": completion.get("reasoning_tokens"),
        "output_cost_per_audio_token": completion.get("audio_tokens"),
    }
    billed = {_INPUT: usage["prompt_tokens"], _OUTPUT: usage["completion_tokens"]}
    for kind, tokens in special.items():
        billed[kind] = tokens or 0
        billed[_plain(kind)] -= tokens or 0
    return billed


def _cost(rates: Mapping[str, Any], kind: str, tier: str, tokens: int) -> float | None:
    """Tokens of a kind without a rate of its own cost what plain ones do."""
    rate = rates.get(kind + tier, rates.get(_plain(kind) + tier))
    return tokens * rate if isinstance(rate, int | float) and tokens > 0 else None


def _plain(kind: str) -> str:
    return _OUTPUT if kind.startswith("output") else _INPUT


def _tier(rates: Mapping[str, Any], prompt_tokens: int) -> str:
    """The ending of the rates for a prompt of this length: some models charge more for long ones."""
    bounds = [int(found[1]) for found in map(_LONG_PROMPT.fullmatch, rates) if found]
    passed = [bound for bound in bounds if prompt_tokens > bound * 1000]
    return f"_above_{max(passed)}k_tokens" if passed else ""


def _rates(model: str) -> Mapping[str, Any] | None:
    """The entry of a model. Most lists name it with its provider, some without, as a field of the entry then says."""
    provider, _, name = model.partition("/")
    for table in _tables():
        if model in table:
            return table[model]
        entry = table.get(name, {})
        if name and str(entry.get("litellm_provider", "")).startswith(provider):
            return entry
    return None


def _tables() -> Iterator[Mapping[str, Mapping[str, Any]]]:
    # Importing LiteLLM takes seconds and a download; who registers a price or calls an LM through it has done so.
    yield getattr(sys.modules.get("litellm"), "model_cost", None) or {}
    # DSPy loads this table when it prices a call of its own engine.
    yield getattr(sys.modules.get(_METADATA), "_data", None) or _bundled()


@cache
def _bundled() -> Mapping[str, Mapping[str, Any]]:
    """The price list in DSPy's package; empty when this version of DSPy keeps it elsewhere."""
    try:
        packed = files(_METADATA).joinpath("snapshot.json.gz").read_bytes()
    except (ImportError, OSError):
        return {}
    table: dict[str, dict[str, Any]] = json.loads(gzip.decompress(packed))
    return table
