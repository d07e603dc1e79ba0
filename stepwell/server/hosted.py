"""Tools that calls declare for a provider to run: a server of models alone has none of them."""

from __future__ import annotations

import logging

log = logging.getLogger("stepwell.server")

_KINDS_LOGGED = 50


class LeftOut:
    """Names each kind of tool that is left out once in the log. Agents declare some with every call, whether they use them or not."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, kind: str) -> None:
        """A tool of this kind is not shown to the model."""
        if kind not in self._logged and len(self._logged) < _KINDS_LOGGED:
            self._logged.add(kind)
            log.warning("tools of type %.60r are left out: only functions can be called", kind)
