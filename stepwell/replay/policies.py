"""Policies by name: our own, under the scheduler and cache that serve, and, in a checkout, the models of peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stepwell.base.errors import ConfigError
from stepwell.replay.cost import CostModel
from stepwell.replay.eviction import DEFAULT, SAID
from stepwell.replay.machine import Machine, MachineSizes
from stepwell.replay.simulate import Imagined

if TYPE_CHECKING:
    from stepwell.replay.peers.names import Peer

_PEERS = "stepwell.replay.peers"


def _peers() -> Mapping[str, Peer]:
    """Models of other engines by name; none where the package was installed from a wheel, which leaves them out."""
    if find_spec(_PEERS) is None:
        return {}
    from stepwell.replay.peers.names import PEERS

    return PEERS


def policies() -> dict[str, str]:
    """One line on each that can be simulated, by name; our own first."""
    return {**SAID, **{name: peer.said for name, peer in _peers().items()}}


def is_own(name: str) -> bool:
    """Whether our own cache and scheduler run under it."""
    return name in SAID


def titled(name: str) -> str:
    """The name as a page shows it: what models another engine says so."""
    return name if is_own(name) else f"{name} (modelled)"


def is_served(name: str) -> bool:
    """Whether `stepwell serve` runs under it."""
    return name == DEFAULT


def expect_policies(names: Sequence[str]) -> list[str]:
    """The same without repetitions. Raises ConfigError where one is unknown, or none is given."""
    known = policies()
    for name in names:
        if name not in known:
            more = "" if _peers() else " (models of other engines come with a clone of the repository)"
            raise ConfigError(f"--policy {name!r} is unknown: use one of {', '.join(known)}{more}")
    if not names:
        raise ConfigError(f"--policy must name at least one of {', '.join(known)}")
    return list(dict.fromkeys(names))


def machine_for(sizes: MachineSizes, costs: CostModel, seed: int) -> Imagined:
    """The machine of `sizes.policy`; `seed` draws a peer's failures. Raises ConfigError."""
    if is_own(sizes.policy):
        return Machine(sizes, costs)
    from stepwell.replay.peers.names import peer_machine

    return peer_machine(sizes.policy, sizes, costs, sizes.peer_failure_rate, seed)
