"""A job in another process: what is sent there, how it is carried out there, and what comes back as plain data."""

from __future__ import annotations

import os
import socket
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

import dspy
from dspy.utils import exceptions as dspy_errors
from dspy.utils.callback import BaseCallback
from dspy.utils.usage_tracker import UsageTracker

from tgrpo_dspy import errors
from tgrpo_dspy.cloning import held_lms, shared_parts
from tgrpo_dspy.errors import ConfigurationError, TGRPOError
from tgrpo_dspy.records import Role, Rollout
from tgrpo_dspy.runs.secrets import Secrets
from tgrpo_dspy.runs.usage import Meter, UsageLedger
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import Slots, run_anywhere
from tgrpo_dspy.sampling.jobs import Draw, Job, Outcome, Terms
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.sampling.rewards import Metric
from tgrpo_dspy.sampling.shipping import Shipper, unpack
from tgrpo_dspy.sampling.threads import ThreadRunner
from tgrpo_dspy.settings import Sampling

# Settings of DSPy that belong to the process and the moment in which they were made.
_STAY_HERE = frozenset(
    ("callbacks", "caller_modules", "caller_predict", "send_stream", "stream_listeners", "trace", "usage_tracker")
)
_ERROR_FIELDS = ("message", "code", "model", "provider", "provider_code", "status", "request_id", "retry_after")
_KEPT_PACKAGES = 8


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as the cause of what is raised here."""


@dataclass(frozen=True, slots=True)
class Package:
    """A policy with all that its runs need beside an example, as bytes; the same content has the same ``digest``."""

    content: bytes = field(repr=False)
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The LM calls of one block of a job: the answered ones as (model, usage), and how many ended and failed."""

    role: Role
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    ended: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What another process tells of a job, without secrets.

    Args:
        bills: its LM usage.
        rollout: the record of it.
        error: class and fields of the LM's error, when the rollout's failure is the LM's.
        raised: class and text of an error that ends the run.
        trace: the traceback of either, or of the metric's error.
    """

    bills: tuple[Bill, ...] = ()
    rollout: Rollout | None = None
    error: tuple[str, Mapping[str, Any]] | None = None
    raised: tuple[str, str] | None = None
    trace: str = ""


class Sender:
    """Packs the jobs of a run.

    Args:
        terms: what they have in common.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms, self._shipper = terms, Shipper()

    def check(self) -> None:
        """Find out before anything is spent whether the program can run elsewhere.

        Raises:
            ConfigurationError: when it cannot; says why and what to do.
        """
        student, settings = self._terms.student, dspy.settings
        _refuse_callbacks("dspy.settings", settings.callbacks)
        for lm in _lms(student, settings.lm):
            _refuse_callbacks(f"LM {lm.model!r}", lm.callbacks)
        if settings.send_stream is not None or settings.stream_listeners:
            raise ConfigurationError(
                "a program that runs in other processes cannot stream: call compile outside dspy.streamify"
            )
        self.package(student)

    def package(self, program: dspy.Module) -> Package:
        """A program with the metric and the settings it runs under."""
        content = self._shipper.pack(
            {
                "program": program,
                "metric": self._terms.metric,
                "sampling": self._terms.sampling,
                "dspy.settings": {k: v for k, v in dspy.settings.config.items() if k not in _STAY_HERE},
                "cache": (dspy.cache.enable_disk_cache, dspy.cache.enable_memory_cache),
            }
        )
        return Package(content, sha256(content).hexdigest())

    def example(self, item: Item) -> bytes:
        """An example."""
        return self._shipper.pack({"example": item.example})


def _refuse_callbacks(name: str, callbacks: Sequence[Any]) -> None:
    if callbacks:
        shown = ", ".join(type(callback).__name__ for callback in callbacks)
        raise ConfigurationError(
            f"{name} has callbacks ({shown}), which would not be called: the program runs in other processes. Leave "
            "them out, as in `with dspy.context(callbacks=[]):`, or use executor='threads'. What happens in a run is "
            "told to the listeners of compile, wherever it happens."
        )


def _lms(program: dspy.Module, default: dspy.BaseLM | None) -> list[dspy.BaseLM]:
    return held_lms(program) + ([] if default is None else [default])


def received(told: Told, ledger: UsageLedger) -> Outcome:
    """The outcome of a job that another process tells of; its LM usage is entered in the ledger.

    Raises:
        TGRPOError: what ended the job there, such as ``MetricError``.
    """
    for bill in told.bills:
        with ledger.count(bill.role) as meter:
            for model, usage in bill.calls:
                meter.add_usage(model, dict(usage))
            meter.callback.ended += bill.ended
            meter.callback.failed += bill.failed
    cause = RemoteTraceback(f"\n{told.trace}") if told.trace else None
    if told.raised is not None:
        name, text = told.raised
        raise getattr(errors, name, TGRPOError)(text) from cause
    assert told.rollout is not None
    if told.error is None:
        return Outcome(told.rollout, cause)
    name, fields = told.error
    error: Exception = getattr(dspy_errors, name)(**fields)
    error.__cause__ = cause
    return Outcome(told.rollout, error)


def carry_out(digest: str, fetch: Callable[[], bytes], example: bytes, draw: Draw, dspy_version: str) -> Told:
    """Carry out a job in this process.

    Args:
        digest: of the package; one that this process has opened before is not fetched again.
        fetch: gets the content of the package.
        example: the packed example.
        draw: how it is run.
        dspy_version: the version of DSPy that packed it.
    """
    if dspy_version != dspy.__version__:
        text = f"DSPy is {dspy.__version__} on {_here()}, but {dspy_version} where compile runs: install the same one"
        return Told(raised=("ConfigurationError", text))
    try:
        opened = _opened(digest, fetch)
        item = Item("", unpack(example)["example"], {}, {})
    except ConfigurationError as error:
        return Told(raised=("ConfigurationError", f"{error} (process {_here()})"))
    except Exception as error:  # whatever loading a user's objects raises
        text = (
            f"the program cannot be loaded on {_here()}: {type(error).__name__}: {error}. What it is made of has to be "
            "installed wherever it runs."
        )
        return Told(raised=("ConfigurationError", text), trace=traceback.format_exc())
    return opened.run(item, draw)


def _here() -> str:
    return f"{socket.gethostname()}, pid {os.getpid()}"


@dataclass(frozen=True, slots=True)
class _Opened:
    """A package made ready to run."""

    policy: Policy
    metric: Metric
    sampling: Sampling
    settings: Mapping[str, Any]
    secrets: Secrets

    @classmethod
    def of(cls, content: bytes) -> _Opened:
        parts = unpack(content)
        program, settings = parts["program"], parts["dspy.settings"]
        _use_cache(*parts["cache"])
        return cls(
            policy=Policy(program, "", shared_parts(program)),
            metric=parts["metric"],
            sampling=parts["sampling"],
            settings=settings,
            secrets=Secrets.of(_lms(program, settings["lm"])),
        )

    def run(self, item: Item, draw: Draw) -> Told:
        ledger = _Tab()
        runner = ThreadRunner(self.metric, self.sampling, Slots(1))
        with dspy.context(**self.settings):
            try:
                outcome = run_anywhere(partial(runner.run, Job(self.policy, item, draw), ledger))
                told = _told(outcome, ledger)
            except TGRPOError as error:
                told = Told(
                    bills=ledger.bills(), raised=(type(error).__name__, str(error)), trace=traceback.format_exc()
                )
        return self.secrets.mask_in(told)


def _told(outcome: Outcome, ledger: _Tab) -> Told:
    error = outcome.error
    trace = "" if error is None else "".join(traceback.format_exception(error))
    described = _described(error) if isinstance(error, dspy.LMError) else None
    return Told(bills=ledger.bills(), rollout=outcome.rollout, error=described, trace=trace)


def _described(error: dspy.LMError) -> tuple[str, Mapping[str, Any]]:
    """An LM's error by the class of DSPy's that it is one of."""
    name = next(cls.__name__ for cls in type(error).__mro__ if vars(dspy_errors).get(cls.__name__) is cls)
    return name, {field: getattr(error, field, None) for field in _ERROR_FIELDS}


_packages: OrderedDict[str, _Opened] = OrderedDict()
_cache_in_use: tuple[bool, bool] | None = None


def _opened(digest: str, fetch: Callable[[], bytes]) -> _Opened:
    if digest not in _packages:
        _packages[digest] = _Opened.of(fetch())
    _packages.move_to_end(digest)
    if len(_packages) > _KEPT_PACKAGES:
        _packages.popitem(last=False)
    return _packages[digest]


def _use_cache(disk: bool, memory: bool) -> None:
    """Cache as the sending process does, in this machine's own folder."""
    global _cache_in_use
    if _cache_in_use != (disk, memory):
        dspy.configure_cache(enable_disk_cache=disk, enable_memory_cache=memory)
        _cache_in_use = (disk, memory)


class _Calls(UsageTracker):
    """Keeps the calls in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, Mapping[str, Any]]] = []

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        self.made.append((lm, self._flatten_usage_entry(usage_entry)))


class _Tab(UsageLedger):
    """A ledger whose entries can be told to another process, those of a block that has not ended too."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[tuple[Role, _Calls, Meter]] = []

    @contextmanager
    def count(self, role: Role, watching: Sequence[BaseCallback] = ()) -> Iterator[Meter]:
        calls = _Calls()
        with dspy.context(usage_tracker=calls), super().count(role, watching) as meter:
            self._blocks.append((role, calls, meter))
            yield meter

    def bills(self) -> tuple[Bill, ...]:
        """What was counted so far, by block."""
        return tuple(
            Bill(role=role, calls=tuple(calls.made), ended=meter.callback.ended, failed=meter.callback.failed)
            for role, calls, meter in self._blocks
        )
