"""Who is served before whom: by priority, then by arrival, or by turns among salts.

A place in the order is a number that is set on arrival, so that the queue is not sorted anew, except where somebody gives up:

    place = start + priority · ageing       start: when it came; with turns among salts, where its salt's work so far ends

Waiting for `ageing` seconds is worth one step of priority: of two requests the worse one is served first if it came that much
earlier. Whatever comes later, and however urgent, no request waits for more than the range of priorities allows.
"""

from __future__ import annotations

from stepwell.cache.names import tenant_of
from stepwell.sched.request import Request

_REMEMBERED = 4096  # salts and priorities; those that have fallen behind are worth nothing and are forgotten


class Order:
    """Gives places. With `fair`, time is work: the seconds of prefill of the prompts that have been admitted.

        salt a   ├── 9 s ──┼── 9 s ──┼── 9 s ──┤      the virtual time of whoever is admitted is that of the queue; a salt that
        salt b        ├ 2 ┼ 2 ┼ 2 ┤                   comes anew starts there, not at 0, and each starts where its last one ends

    So salts that wait at one priority get equal shares of prefill, whatever they send, and one alone is served as it came. What
    stands before the first colon of a salt counts: a key with a cache of its own has no more turns for naming more salts below it.
    """

    __slots__ = ("_ageing", "_count", "_ends", "_fair", "_most", "_now", "_tokens_per_s")

    def __init__(self, ageing: float, fair: bool = False, tokens_per_s: float = 1.0) -> None:
        self._ageing = ageing
        self._fair = fair
        self._tokens_per_s = tokens_per_s
        self._count = 0
        self._now = 0.0
        self._ends: dict[tuple[str, int], float] = {}
        self._most = _REMEMBERED

    def place(self, request: Request, now: float) -> tuple[float, int]:
        """Where `request`, which arrives at `now`, stands; lower is sooner. Amortised O(1)."""
        self._count += 1
        start = self._start(request) if self._fair else now
        return start + request.priority * self._ageing, self._count

    def served(self, request: Request, place: tuple[float, int]) -> None:
        """A request has left the queue to be served: whoever comes now does not start before it."""
        if self._fair:
            self._now = max(self._now, place[0] - request.priority * self._ageing)

    def withdrawn(self, request: Request) -> None:
        """A request has left the queue and will not be served: what its salt sends from now on is not behind its work."""
        key = _key(request)
        if key in self._ends:
            self._ends[key] -= self._work(request)

    def closed_up(self, gone: Request, later: Request, place: tuple[float, int]) -> tuple[float, int]:
        """Where `later` stands, who came after `gone` and was at `place`, now that `gone` is withdrawn: nearer by its work, if that was
        of the same salt and priority, but before nobody who is served by now."""
        if not self._fair or _key(gone) != _key(later):
            return place
        shift = later.priority * self._ageing
        start = place[0] - shift
        return max(start - self._work(gone), min(start, self._now)) + shift, place[1]

    def _start(self, request: Request) -> float:
        key = _key(request)
        start = max(self._now, self._ends.get(key, 0.0))
        if len(self._ends) >= self._most:
            self._ends = {known: end for known, end in self._ends.items() if end > self._now}
            self._most = max(_REMEMBERED, 2 * len(self._ends))
        self._ends[key] = start + self._work(request)
        return start

    def _work(self, request: Request) -> float:
        return len(request.prompt) / self._tokens_per_s


def _key(request: Request) -> tuple[str, int]:
    return tenant_of(request.salt), request.priority
