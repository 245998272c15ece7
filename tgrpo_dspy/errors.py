"""What can go wrong, as one tree.

TGRPOError
├── ConfigurationError    a setting or an argument cannot work; raised before any LM call (also a ValueError)
│   └── ProgramError      the student has nothing that could be improved
├── MetricError           the metric broke its contract, or fails the same way everywhere
├── LMUnavailableError    the language model fails for good before anything was learned
├── RunDirError           the folder of a run cannot be used: in use, not writable, full, or damaged
└── LibraryError          a library, an edit of one, or a file of one is not what it should be (also a ValueError)

Catch ``TGRPOError`` for everything this package raises on purpose. A rollout that fails is not an exception:
it is a record with a ``Failure`` (see ``tgrpo_dspy.records``).
"""


class TGRPOError(Exception):
    """Base class of every error this package raises on purpose."""


class ConfigurationError(TGRPOError, ValueError):
    """A setting or an argument cannot work. The message names it, its value and what to do."""


class ProgramError(ConfigurationError):
    """The student has no predictor whose instructions could carry an experience."""


class MetricError(TGRPOError):
    """The metric returned something that is not a reward, or raises on every rollout."""


class LMUnavailableError(TGRPOError):
    """The language model fails for good (no key, no credit, too many failures in a row) and nothing was learned yet."""


class WorkerError(TGRPOError):
    """Another process could not run the program, for a reason that is neither the program's nor the LM's."""


class RunDirError(TGRPOError):
    """The folder of a run cannot be used. What it holds already is left as it is."""


class LibraryError(TGRPOError, ValueError):
    """A library or one of its files is not what it should be."""
