"""Who gets a request: the router that serves, and models of others to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Ints
from stepwell.fleet.router import Router, View
from stepwell.replay.lanes import TraceRequest
from stepwell.replay.machine import Machine
from stepwell.sched.outlook import Outlook

MOST_REPLICAS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A request as a router sees it: its tokens, the requests under way at each replica, and the time in s."""

    request: TraceRequest
    prompt: Ints
    loads: Sequence[int]
    now: float


class Routing(Protocol):
    """Chooses a replica for each request, by its number."""

    def route(self, arrival: Arrival) -> int: ...


class RandomRouting:
    """Any replica, each as likely."""

    def __init__(self, machines: Sequence[Machine], seed: int) -> None:
        self._dice = Random(seed)
        self._count = len(machines)

    def route(self, arrival: Arrival) -> int:
        return self._dice.randrange(self._count)


class SessionRouting:
    """The replica that a digest of the session names, whatever else is there: as consistent hashing does."""

    def __init__(self, machines: Sequence[Machine], seed: int) -> None:
        self._key = seed.to_bytes(8, "little")
        self._count = len(machines)

    def route(self, arrival: Arrival) -> int:
        digest = blake2b(arrival.request.session.encode(), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "little") % self._count


_MATCH = 0.1
"""Share of a prompt that must match for a replica to be chosen for it."""


class PrefixRouting:
    """Ray Serve LLM's `PrefixCacheAffinityRouter` (Ray 2.60, its defaults), modelled.

    It remembers every prompt that it sent to each replica, and nothing of what is cached there. A prompt of which a tenth or more is known
    goes to the replica that was sent the longest part of it; else to the one that was sent the fewest characters. Of several alike, two
    are drawn and the one with fewer requests is taken.

    Modelled in tokens where the router has characters; prompts are known by the blocks of the trace. Its threshold of imbalance is
    infinite by default, so load counts among those alike only.
    """

    def __init__(self, machines: Sequence[Machine], seed: int) -> None:
        if len(machines) > 64:
            raise ConfigError(f"--routing prefix is modelled for up to 64 replicas, not {len(machines)}")
        self._dice = Random(seed)
        self._sent = [0] * len(machines)
        self._known: dict[str, npt.NDArray[np.uint64]] = {}

    def route(self, arrival: Arrival) -> int:
        told = arrival.request.conversation
        ids = arrival.request.turn.ids()
        most = int(ids.max()) + 1 if len(ids) else 0
        known = self._known.get(arrival.request.session, np.zeros(1024, np.uint64))
        if most > len(known):
            known = np.concatenate([known, np.zeros(max(most, 2 * len(known)) - len(known), np.uint64)])
        seen = known[ids]
        unseen = np.flatnonzero(seen == 0)
        matched = int(unseen[0]) if len(unseen) else len(ids)
        if matched and matched * told.block >= _MATCH * len(arrival.prompt):
            owners = int(seen[matched - 1])
            alike = [i for i in range(len(self._sent)) if owners >> i & 1]
        else:
            least = min(self._sent)
            alike = [i for i, sent in enumerate(self._sent) if sent == least]
        drawn = self._dice.sample(alike, min(2, len(alike)))
        chosen = min(drawn, key=lambda i: arrival.loads[i])
        mine = np.uint64(1 << chosen)
        self._sent[chosen] += int(((seen & mine) == 0).sum()) * told.block
        known[ids] |= mine
        self._known[arrival.request.session] = known
        return chosen


class StepwellRouting:
    """The router that serves, asked about the replicas' own expectations. Every answer comes in time."""

    def __init__(self, machines: Sequence[Machine], seed: int) -> None:
        self._machines = machines
        self._router = Router()
        self._numbers = {f"{i:04d}": i for i in range(len(machines))}

    def route(self, arrival: Arrival) -> int:
        loads = {name: arrival.loads[i] for name, i in self._numbers.items()}
        session = arrival.request.session
        asked = self._router.whom_to_ask(session, loads)
        told = self._outlooks(asked[:1], arrival.prompt)
        told |= self._outlooks(self._router.whom_to_ask_next(session, asked, told), arrival.prompt)
        views = [View(name, load, told.get(name)) for name, load in loads.items()]
        return self._numbers[self._router.choose(session, len(arrival.prompt), views, arrival.now).replica]

    def _outlooks(self, names: Sequence[str], prompt: Ints) -> dict[str, Outlook]:
        return {name: self._machines[self._numbers[name]].loop.outlook("", prompt) for name in names}


ONE = "one"
"""Not a routing: one replica with the memory and the speed of all, to measure routings by."""

ROUTINGS: Mapping[str, tuple[str, Callable[[Sequence[Machine], int], Routing]]] = MappingProxyType(
    {
        "stepwell": ("expected time to the first token, as `stepwell.serve_ray` routes", StepwellRouting),
        "prefix": ("Ray Serve LLM's prefix router, modelled", PrefixRouting),
        "session": ("by a digest of the session", SessionRouting),
        "random": ("any replica", RandomRouting),
        ONE: ("one replica with the memory and the speed of all, as a yardstick", RandomRouting),
    }
)


def expect_routings(names: Sequence[str]) -> list[str]:
    """The same without repetitions. Raises ConfigError where one is unknown."""
    for name in names:
        if name not in ROUTINGS:
            raise ConfigError(f"--routing {name!r} is unknown: use one of {', '.join(ROUTINGS)}")
    return list(dict.fromkeys(names))
