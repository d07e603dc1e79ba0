"""Many simulations of one trace, each on a machine of its own, side by side in processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any, TypeVar

from stepwell.base.children import importing_safely
from stepwell.base.errors import StepwellError
from stepwell.replay.eviction import DEFAULT
from stepwell.replay.machine import MachineSizes
from stepwell.replay.policies import expect_policies, machine_for
from stepwell.replay.profile import Profile, load_profile
from stepwell.replay.report import Summary, quantiles
from stepwell.replay.setup import Params, phases_from, rules_from, settings_of, sizes_from, tokens_in, trace_from
from stepwell.replay.simulated import Setting, simulated

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """What one machine of the sweep came to. Shares are of the measured prompt tokens, `ttft` in s."""

    device_tokens: int
    host_tokens: int
    disk_tokens: int
    requests: int
    bound: float
    device: float
    host: float
    disk: float
    excess: float
    ttft_p50: float
    ttft_p99: float
    rungs_skipped: int
    policy: str = DEFAULT

    @property
    def hit(self) -> float:
        """Over all tiers."""
        return self.device + self.host + self.disk

    def price(self, host_price: float) -> float:
        """What the memory costs, in tokens of device memory; disk counts a tenth of host."""
        return self.device_tokens + host_price * (self.host_tokens + self.disk_tokens / 10)


def machines(params: Params, profile: Profile) -> list[MachineSizes]:
    """Every combination of the policies and sizes that were given, in order. Raises ConfigError."""
    kv = profile.costs.kv_bytes_per_token
    sizes = [
        sorted({tokens_in(text, flag, kv) for text in params[name]})
        for name, flag in (("device", "--device"), ("host", "--host"), ("disk", "--disk"))
    ]
    return [
        sizes_from({**params, "device_tokens": str(a), "host_tokens": str(b), "disk_tokens": str(c)}, profile, policy)
        for policy, (a, b, c) in product(expect_policies(params["policy"]), product(*sizes))
    ]


def sweep(params: dict[str, Any], jobs: int) -> Iterator[Point]:
    """Points as they are done; `params` are those of `plan_command`. Raises StepwellError where one cannot be simulated."""
    yield from simulations(params, machines(params, load_profile(params["profile"])), jobs, point)


def simulations(
    params: dict[str, Any], wanted: Sequence[MachineSizes], jobs: int, found: Callable[[Summary, MachineSizes], T]
) -> Iterator[T]:
    """What `found` makes of each simulation, as they are done. `params` say what is played. Raises StepwellError."""
    profile = load_profile(params["profile"])
    # What cannot be read or built is told here and now, not after hours or by a process that ends of it.
    setting = setting_from(params, profile)
    for sizes in wanted:
        machine_for(sizes, setting.costs, setting.rules.seed)
    yield from side_by_side(params, setting, [partial(_simulate, sizes, found) for sizes in wanted], jobs)


def _simulate(sizes: MachineSizes, found: Callable[[Summary, MachineSizes], T], setting: Setting) -> T:
    return found(simulated(setting, sizes), sizes)


def side_by_side(
    params: dict[str, Any], setting: Setting, tasks: Sequence[Callable[[Setting], T]], jobs: int
) -> Iterator[T]:
    """What each task makes of `setting`, as they are done; with `jobs` > 1 in processes, where `params` say what `setting` is. Raises
    StepwellError."""
    if jobs == 1:
        yield from (task(setting) for task in tasks)
        return
    # Fresh processes: nothing of this one's threads goes with them. Each reads the trace once.
    with importing_safely():
        pool = ProcessPoolExecutor(jobs, get_context("spawn"), _Worker.begin, (params,))
        begun = [pool.submit(_Worker.run, task) for task in tasks]
    with pool:
        try:
            for one in as_completed(begun):
                yield one.result()
        except BrokenProcessPool as error:
            raise StepwellError("a process that simulates has ended: give fewer --jobs, if memory is short") from error
        finally:
            for one in begun:
                one.cancel()


def setting_from(params: Params, profile: Profile) -> Setting:
    """What every simulation plays."""
    rules, phases, told = rules_from(params), phases_from(params), settings_of(params)
    future = params.get("bound") == "future"  # which `plan` does not ask for
    return Setting(trace_from(params), rules, phases, profile.costs, params["idle_gap_cap"], future, told)


def point(summary: Summary, sizes: MachineSizes) -> Point:
    """The figures of one simulation."""
    ttft = quantiles(summary.ttft)
    a = summary.admitted
    return Point(
        device_tokens=sizes.device_tokens,
        host_tokens=sizes.host_tokens,
        disk_tokens=sizes.disk_tokens,
        requests=summary.requests,
        bound=summary.share(summary.bound),
        device=summary.share(a.device),
        host=summary.share(a.host),
        disk=summary.share(a.disk),
        excess=summary.excess,
        ttft_p50=ttft.get("p50", 0.0),
        ttft_p99=ttft.get("p99", 0.0),
        rungs_skipped=summary.rungs.skipped if summary.rungs else 0,
        policy=sizes.policy,
    )


class _Worker:
    """A process that simulates: the trace that it has read stays in it."""

    setting: Setting | None = None

    @classmethod
    def begin(cls, params: dict[str, Any]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once: it has nothing to save
        cls.setting = setting_from(params, load_profile(params["profile"]))

    @classmethod
    def run(cls, task: Callable[[Setting], T]) -> T:
        assert cls.setting is not None, "begin has run in this process"
        return task(cls.setting)


def knee(points: Sequence[Point], host_price: float) -> Point:
    """Where more memory stops paying: the point furthest above the straight line from the cheapest machine at its hit to the
    dearest one at the best hit.

    Only machines that no cheaper one matches are looked at. `host_price`: of a byte of host memory, in bytes of the device's.
    """
    best: list[Point] = []
    ordered = sorted(points, key=lambda p: (p.price(host_price), -p.hit))
    for found in ordered:
        if not best or found.hit > best[-1].hit:
            best.append(found)
    first = best[0]
    width, height = ordered[-1].price(host_price) - first.price(host_price), best[-1].hit - first.hit
    if not width or not height:
        return first

    def above(found: Point) -> float:
        return (found.hit - first.hit) / height - (found.price(host_price) - first.price(host_price)) / width

    return max(best, key=lambda p: (above(p), -p.price(host_price)))
