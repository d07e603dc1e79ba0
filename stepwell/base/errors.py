"""Every error that Stepwell raises on purpose.

    StepwellError
    ├── ConfigError      a flag, a config file or a checkpoint cannot work; says what to change
    ├── RequestError     one request is at fault; names the field (`param`)
    ├── CapacityError    a request is well formed but can never fit this engine
    ├── StoreError       a copy failed: a tier, not a request, is at fault
    ├── StalePlan        a plan was made from a directory that has changed since
    ├── RankError        a process of several that share a model has ended or failed; names it
    └── EngineDead       the engine loop has stopped; every open request ends with this

`assert` states invariants of our own code and never judges what a user sent.
"""

from __future__ import annotations


class StepwellError(Exception):
    """Base of every deliberate error; its text is fit to be shown to a user."""


class ConfigError(StepwellError):
    """The engine cannot start as configured."""


class RequestError(StepwellError):
    """A request is malformed. `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CapacityError(StepwellError):
    """A request can never fit. Carries the two numbers that say why."""

    def __init__(self, message: str, needed: int, available: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class StoreError(StepwellError):
    """A copy between tiers failed."""


class StalePlan(StepwellError):
    """A plan met a directory of another epoch; plan again."""

    def __init__(self, planned: int, found: int) -> None:
        super().__init__(f"plan was made at epoch {planned}, the directory is at {found}: plan again")
        self.planned = planned
        self.found = found


class RankError(StepwellError):
    """One of the processes that share a model is gone, or not to be trusted: the engine ends with it."""


class EngineDead(StepwellError):
    """The engine loop has ended; the message carries its last error."""
