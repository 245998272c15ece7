"""A `dspy.LM` on a llama.cpp server of our own, or on whatever model the environment names."""

from __future__ import annotations

import os
import threading
import urllib.request
from pathlib import Path
from typing import Any

import dspy

from programs.local_server import LocalRuntimeMissingError, LocalServer, LocalServerError, require_runtime
from programs.model_files import QWEN_CODER_1_5B, SMOLLM2_135M, ModelFile, model_path

__all__ = [
    "QWEN_CODER_1_5B",
    "SMOLLM2_135M",
    "LocalRuntimeMissingError",
    "LocalServer",
    "LocalServerError",
    "ModelFile",
    "lm_from_env",
    "local_lm",
    "model_path",
    "reflection_lm_from_env",
]

_servers: dict[Path, LocalServer] = {}
_servers_lock = threading.Lock()


def local_lm(
    model: ModelFile = QWEN_CODER_1_5B,
    *,
    path: str | Path | None = None,
    cache_dir: str | Path | None = None,
    threads: int | None = None,
    slots: int = 4,
    context: int = 4096,
    temperature: float = 0.0,
    max_tokens: int = 512,
    **lm_kwargs: Any,
) -> dspy.LM:
    """A `dspy.LM` on a local server with this model: fetched if need be, one server per process and model file.

    Cached answers survive a new port and a new process: DSPy's cache knows the model's name, not the address. `path`
    and `cache_dir` are those of `model_path`, the numbers those of `LocalServer`; `lm_kwargs` go to `dspy.LM`. Raises
    what those raise, and `ValueError` when a server of the model already runs with other numbers.
    """
    require_runtime()
    file = model_path(model, path=path, cache_dir=cache_dir).resolve()
    wanted = LocalServer(file, name=model.name, threads=threads, slots=slots, context=context)
    with _servers_lock:
        server = _servers.get(file, wanted)
        if server.running:
            _require_same_settings(server, wanted)
        else:
            server.close()
            server = _servers[file] = wanted
        url = server.start().url
    _reach_loopback_directly()
    options: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens, **lm_kwargs}
    return dspy.LM(f"openai/{model.name}", api_base=f"{url}/v1", api_key="local", **options)


def lm_from_env(**local_kwargs: Any) -> dspy.LM:
    """The model that `TGRPO_LM` names (any LiteLLM name), else the local one, with `local_kwargs` for `local_lm`."""
    name = os.environ.get("TGRPO_LM", "").strip()
    return dspy.LM(name) if name else local_lm(**local_kwargs)


def reflection_lm_from_env() -> dspy.LM | None:
    """The model that `TGRPO_REFLECTION_LM` names (any LiteLLM name), or None: reflect with the program's own model."""
    name = os.environ.get("TGRPO_REFLECTION_LM", "").strip()
    return dspy.LM(name) if name else None


def _require_same_settings(server: LocalServer, wanted: LocalServer) -> None:
    for setting in ("threads", "slots", "context"):
        has, wants = getattr(server, setting), getattr(wanted, setting)
        if has != wants:
            raise ValueError(
                f"A server of {server.name} already runs in this process with {setting}={has}, got {wants}: "
                f"use {has}, or a LocalServer of your own."
            )


def _reach_loopback_directly() -> None:
    """Keep the HTTP clients of DSPy and LiteLLM from sending loopback requests to a proxy of the environment."""
    if not urllib.request.getproxies() or urllib.request.proxy_bypass("127.0.0.1"):
        return
    for variable in ("NO_PROXY", "no_proxy"):
        os.environ[variable] = ",".join(filter(None, (os.environ.get(variable), "127.0.0.1")))
