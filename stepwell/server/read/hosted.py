"""What calls hold that this server has no use for: tools for a provider to run, parts of messages that are no text."""

from __future__ import annotations

import logging

log = logging.getLogger("stepwell.server")

_KINDS_LOGGED = 50


class LeftOut:
    """Counts ignored tools, and logs each kind once: agents send the same ones with every call.

    `what` is left out, and `why`, as the log says it.
    """

    def __init__(self, what: str = "tools", why: str = "only functions can be called") -> None:
        self._what = what
        self._why = why
        self._logged: set[str] = set()
        self.count = 0

    def note(self, kind: str) -> None:
        """Something of this kind is not shown to the model."""
        self.count += 1
        if kind not in self._logged and len(self._logged) < _KINDS_LOGGED:
            self._logged.add(kind)
            log.warning("%s of type %.60r are left out: %s", self._what, kind, self._why)
