"""Random engines and random requests for them, drawn from anything that can choose: a seed, or Hypothesis."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from typing import Protocol

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.disk.archive import WriteBudget
from stepwell.cache.external.ledger import What
from stepwell.cache.moves import Tier
from stepwell.replay.eviction import POLICIES
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.sched.retention import Prefetched, Subject
from stepwell.sched.step import Runner
from stepwell.testing import telltale
from stepwell.testing.faults import LIVE, Copied, FaultPlan, ManualMover, Where, no_copy
from stepwell.testing.harness import Harness
from stepwell.testing.laws import cached_items, require

VOCAB = 40
SALTS = ("", "", "a", "b")


class Chooser(Protocol):
    """`random.Random`, or something like it."""

    def randint(self, a: int, b: int) -> int: ...


def pick(rng: Chooser, *options: object) -> object:
    return options[rng.randint(0, len(options) - 1)]


def number(rng: Chooser, *options: int) -> int:
    return options[rng.randint(0, len(options) - 1)]


def chance(rng: Chooser, percent: int) -> bool:
    return rng.randint(1, 100) <= percent


def widening(seed: int) -> int:
    """Slots that host gets before each action until it has all; 0: it has them from the start."""
    return (0, 0, 1, 7)[seed // 3 % 4]


def engine(rng: Chooser, seed: int, ranks: int = 1, corrupt: int = 0, faulty: int | None = None) -> Harness:
    """An engine of random sizes, down to the smallest that is legal; each of its ranks has faults of its own, or `faulty` alone has. Where
    bytes are corrupted (`corrupt`), more resumes are audited, and one engine in four has no checksums in host."""
    block = number(rng, 4, 4, 1, 2)
    grid = block * number(rng, 2, 1, 3, 4)
    geometry = telltale.geometry(block, grid, image_pages=number(rng, 2, 1, 3))
    tiny = chance(rng, 15)
    cache = CacheConfig(
        geometry,
        device_pages=rng.randint(1, 6) if tiny else number(rng, rng.randint(7, 20), rng.randint(12, 60)),
        host_slots=number(rng, rng.randint(1, 10), *(rng.randint(20, 160) for _ in range(4)), 0),
        chunk=block * number(rng, 1, 2, 4),
        whole_chunks=chance(rng, 40),
        interval=grid * number(rng, 1, 2, 4),
        min_load_tokens=None if chance(rng, 20) else rng.randint(0, 2 * block),
        clean_share=number(rng, 5, 0, 30, 100) / 100,
        ghost_blocks=number(rng, 1000, 8, 0),
        disk_slots=number(rng, 0, rng.randint(1, 20), *(rng.randint(20, 300) for _ in range(3))),
        write_idle=chance(rng, 60),
        policy=POLICIES[_POLICIES[seed % len(_POLICIES)]],
        tenant_share=(1.0, 1.0, 0.5, 0.2)[seed // 4 % 4],
        copy_idle=seed // 5 % 4 > 0,
    )
    if widening(seed):
        cache = replace(cache, host_ready=cache.host_slots * (seed // 12 % 3) // 4)
    seqs = rng.randint(1, 4)
    drafts = min(
        random.Random(f"drafts {seed}").choice((0, 0, 0, 1, 2, 3)), block - 1
    )  # drawn apart: other actions are those of any run
    sched = SchedConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=(seqs - 1) * (1 + drafts) + grid + rng.randint(0, 30),
        max_model_len=number(rng, 200, rng.randint(2, 60)),
        decode_rung_tokens=block * number(rng, 1, 2, 4),
        waypoint_tokens=block
        * random.Random(f"waypoints {seed}").choice((1, 2, 4, 8, 256)),  # drawn apart, as drafts are
        eos=(3,) if chance(rng, 30) else (),
        vocab=VOCAB,
        cache=not chance(rng, 4),
        load_timeout=0.003 if seed % 4 == 2 else 0.0,  # three steps
        coalesce=seed % 8 != 7,
        priority_ageing=0.01,  # ten steps
        fair_salts=seed % 2 == 1,
        async_scheduling=random.Random(seed).random() < 0.5,
        max_step_s=(0.0, 0.02, 0.1)[seed % 5 % 3],
        records_a_turn=(64, 1, 3)[seed // 16 % 3],
        drafts=drafts,
    )
    disk = number(rng, 10**9, 10**9, 10**5)  # bytes a second; the least is hardly worth a write
    costs = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, disk), latency_s=1e-6)
    budget = WriteBudget(number(rng, 2000, 20000), number(rng, 1, 50)) if chance(rng, 25) else WriteBudget()
    impatient = sched.load_timeout > 0
    plans = tuple(
        _faults(rng, seed * ranks + rank, impatient) if faulty in (None, rank) else FaultPlan() for rank in range(ranks)
    )
    same_kv = ranks > 1 and chance(rng, 30)
    audit = 0.5 if seed % 4 == 1 else 0.0
    outside = random.Random(f"outside {seed}")  # drawn apart, as drafts are
    least = None if outside.random() < 0.5 else outside.randint(1, block)
    if least is not None:
        cache = replace(cache, external_chunk=outside.choice((grid, grid, block, 2 * grid)))
        if outside.random() < 0.6:  # what leaves the device is nowhere else
            cache = replace(cache, host_slots=0, disk_slots=0, host_ready=None)
        sched = replace(
            sched, lookup_timeout=outside.choice((0.004, 0.03)), external_lease_s=outside.choice((0.004, 1.0))
        )
        cache = replace(cache, external_drops=outside.random() < 0.5)
    return Harness(
        cache,
        sched,
        None,
        costs,
        VOCAB,
        ranks=ranks,
        rank_faults=plans,
        same_kv=same_kv,
        budget=budget,
        audit=(1.0, 0.5)[seed // 2 % 2] if corrupt else audit,
        checked=not corrupt or seed % 4 > 0,
        seed=seed,
        slow_masks=(0, 1, 6)[seed % 7 % 3],
        gain=Flickering(seed) if seed % 3 != 1 else None,
        least=least,
        through=wired if seed % 3 == 1 and _WIRE else lambda runner: runner,
    )


class Flickering:
    """Turns drafts on and off as it likes."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"gain {seed}")
        self._left, self._on = 0, True

    def wants(self, decodes: int) -> bool:
        self._left -= 1
        if self._left < 0:
            self._left, self._on = self._rng.choice((0, 1, 2, 5, 20)), not self._on
        return self._on

    def saw(self, step: object) -> None:
        return None


_WIRE = find_spec("msgspec") is not None
"""The laws themselves need numpy alone."""


def wired(runner: Runner) -> Runner:
    """Each step, and what comes of it, crosses the wire between control and a worker."""
    from stepwell.engine.wire.link import Endpoint, WiredRunner

    return WiredRunner(Endpoint(runner, ManualMover(no_copy)))


_POLICIES = ("ladder", "ladder", *POLICIES)


def _faults(rng: Chooser, seed: int, impatient: bool) -> FaultPlan:
    """Where the engine waits for no copy for ever (`impatient`), more reports of copies downwards are lost."""
    plan = FaultPlan(random.Random(seed))
    if chance(rng, 60):
        plan.delay(polls=rng.randint(1, 4), chance=0.5)
    if chance(rng, 40):
        for copied in _COPIED:
            plan.fail(copied=copied, chance=0.1)
    if chance(rng, 20):
        plan.fail(Where(target=LIVE), chance=0.5)
    if chance(rng, 20):
        plan.fail(Where("kv", Tier.HOST), copied="half", chance=0.5)
    if chance(rng, 30):
        plan.duplicate(chance=0.2)
    if chance(rng, 30):
        plan.reorder(0.4)
    if chance(rng, 20):
        plan.drop(chance=0.1)
    if impatient:
        plan.drop(Where(source=Tier.DEVICE), chance=0.1).drop(Where(target=Tier.DISK), chance=0.3)
    return plan


_COPIED: tuple[Copied, ...] = ("none", "half", "all")


KINDS: tuple[What, ...] = ("kv", "image")


class Driver:
    """Draws one action after another, and carries it out; of a hundred, `hints` are hints. Before `corrupt` of a hundred a byte is made
    wrong somewhere, or what begins like a former prompt is condemned. Of a hundred requests `waits` follow a grammar, and before a
    quarter as many of a hundred actions a compaction begins.

    happened  by tier, bytes made wrong that something is cached in; and quarantines
    """

    def __init__(
        self,
        rng: Chooser,
        seed: int = 0,
        ranks: int = 1,
        hints: int = 4,
        corrupt: int = 0,
        waits: int = 0,
        faulty: int | None = None,
    ) -> None:
        self.hints = hints
        self.harness = engine(rng, seed, ranks, corrupt, faulty)
        self.rng = rng
        self._measured = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self._corrupt, self._noise = corrupt, random.Random(seed)  # of its own: the other actions are those of any run
        self._waits, self._waiting = waits, random.Random(f"waits {seed}")
        self._fate = random.Random(f"fate {seed}")
        self._count = 0
        self._widening = widening(seed)
        self._stops_early = seed // 36 % 4 == 2  # as where no more memory can be locked
        self._orders: dict[int, Prefetched | None] = {}

    def act(self) -> None:
        """One random action."""
        self._widen()
        self._outside()
        # few loads are in flight at a time, and much can go wrong under them
        loads = 4 if self.harness.loop.queues.parked else 1
        if self._corrupt and chance(self._noise, loads * self._corrupt):
            self.corrupt(self._noise)
        if chance(self._waiting, self._waits // 4):
            self.harness.shelf.compacting = self._waiting.randint(1, 9)
        roll = self.rng.randint(1, 100)
        if roll <= 22:
            self.submit()
        elif roll <= 79 - self.hints:
            self.step()
        elif roll <= 79:
            self.hint()
        elif roll <= 83:
            self.abort()
        elif roll <= 87:
            self.preempt()
        elif roll <= 96:
            self.flush()
        elif roll <= 97:
            self.spoil()
        elif roll <= 99:
            self.restart()
        else:
            self.harness.deliver()

    def _widen(self) -> None:
        directory = self.harness.loop.directory
        host = directory.pools.get(Tier.HOST)
        if host is None or host.total == host.most:
            return
        directory.widen(Tier.HOST, min(self._widening, host.most - host.total))
        if self._stops_early and host.total >= host.most // 2:
            directory.settle(Tier.HOST)

    def _outside(self) -> None:
        """Now and then an external store is slow, hangs, loses what it has or has garbage, on any rank."""
        store, draw = self.harness.outside, self._fate
        if store is None or not chance(draw, 25):
            return
        rank = draw.randint(0, len(store.objects) - 1)
        store.delay = draw.choice((0, 0, 0, 1, 3, 20))
        store.silent = chance(draw, 8)
        store.joint.ranks = 1 if chance(draw, 30) else len(store.objects)
        roll = draw.randint(1, 100)
        if roll <= 5:
            store.lose(draw.choice(KINDS), draw.randint(1, 5), rank, last=chance(draw, 50))
        elif roll <= 10:
            store.spoil(draw.choice(KINDS), rank)
        elif roll <= 11:
            store.wipe()

    def submit(self) -> None:
        harness, rng = self.harness, self.rng
        salt, prompt = self._prompt()
        self._count += 1
        params = SamplingParams(
            max_tokens=None if chance(rng, 3) else rng.randint(1, 24),
            stop_token_ids=(rng.randint(0, VOCAB - 1),) if chance(rng, 20) else (),
            min_tokens=rng.randint(0, 4),
            ignore_eos=chance(rng, 20),
            grammar="any" if chance(self._waiting, self._waits) else "",
        )
        if len(prompt):
            read, write = not chance(rng, 8), not chance(rng, 8)
            priority = (0, 0, -1, 2)[self._count % 4]
            request = Request(f"r{self._count}", prompt, params, salt, read, write, priority=priority)
            harness.submit(request)
            if self._count % 4 == 1:
                self._company(request)

    def _company(self, request: Request) -> None:
        """Others that begin alike come at once: the same prompt, and one that goes on or leaves it."""
        prompt = request.prompt
        half = np.concatenate([prompt[: len(prompt) // 2], np.full(9, 7, np.int32)])
        for name, tokens in (("twin", prompt), ("half", half[: self.harness.loop.longest - 1])):
            self.harness.submit(replace(request, id=f"{request.id} {name}", prompt=tokens, priority=0))

    def step(self) -> None:
        for _ in range(number(self.rng, 1, 1, 1, 2, 5)):
            self._measure()
            self.harness.step()
        self.collect()

    def _measure(self) -> None:
        """Now and then, what things cost turns out otherwise, by any factor: it must not matter to what is answered."""
        draw = self._measured.random
        if draw() < 0.2:
            speeds = tuple(10 ** (3 + 7 * draw()) for _ in range(2))
            self.harness.loop.meter.costs = Costs(
                10 ** (5 * draw()), (float("inf"), *speeds), 1e-6, 10 ** (-7 + 5 * draw()), 0.1 * draw(), 0.1 * draw()
            )

    def hint(self) -> None:
        """Pin, unpin or prefetch a prompt, or a part of it."""
        loop, rng = self.harness.loop, self.rng
        salt, prompt = self._prompt()
        part = rng.randint(0, 3)
        told = list(self.harness.told.values())
        if told and chance(rng, 60):  # what has been served is worth more hints than what has not
            salt, prompt = told[-1].request.salt, told[-1].request.prompt
        subject = Subject(salt, prompt[: len(prompt) * part // 3] if chance(rng, 40) else prompt)
        roll = rng.randint(1, 100)
        if roll <= 35:
            loop.pin(subject, rng.randint(0, 40) / 1000)
        elif roll <= 55:
            loop.unpin(subject)
        else:
            if chance(rng, 60):
                self.harness.flush(Tier.DEVICE, demote_first=True)
            order = len(self._orders) + 1
            self._orders[order] = None
            loop.prefetch(order, subject)
        self.harness.check_all()

    def collect(self) -> None:
        """Hear of the prefetches that have ended: each once, and none claims more than was ever there."""
        for done in self.harness.loop.prefetched():
            require(
                8, self._orders.get(done.number, done) is None, f"prefetch {done.number} ends twice, or never began"
            )
            require(8, min(done.device, done.host, done.disk) >= 0, f"{done} is less than nothing")
            require(8, done.device + done.host + done.disk == done.tokens, f"{done} does not sum up")
            self._orders[done.number] = done

    def end(self) -> None:
        """Step until nothing is left to do. Lost reports arrive only once nobody waits for anything, if the engine can do without."""
        self.harness.drain(deliver=not self.harness.loop.config.load_timeout)
        self.collect()
        left = [order for order, done in self._orders.items() if done is None]
        require(8, not left, f"prefetches {left} never ended")

    def abort(self) -> None:
        if name := self._open():
            self.harness.abort(name)

    def preempt(self) -> None:
        if name := self._open():
            self.harness.preempt(name)

    def spoil(self) -> None:
        if name := self._open():
            self.harness.spoil(name)

    def restart(self) -> None:
        if Tier.DISK in self.harness.loop.directory.pools:
            self.collect()
            self._orders = {order: done for order, done in self._orders.items() if done is not None}
            self.harness.restart()

    def flush(self) -> None:
        """Device, host, disk, or device and host: so that something is left below more often than not."""
        tiers = ((Tier.DEVICE,), (Tier.HOST,), (Tier.DISK,), (Tier.DEVICE, Tier.HOST))
        for tier in tiers[number(self.rng, *[0] * 8, 1, 2, *[3] * 5)]:
            if tier in self.harness.loop.directory.pools:
                keep = self.rng.randint(1, 60) if chance(self.rng, 50) else 0
                self.harness.flush(tier, demote_first=not chance(self.rng, 20), keep=keep)

    def corrupt(self, rng: Chooser) -> None:
        """Make a byte wrong, in any tier of any rank, now and then in a slot that holds nothing; or condemn by hand."""
        harness = self.harness
        loading = list(harness.loop.queues.parked)
        if harness.told and chance(rng, 60 if loading else 15):
            names = loading or list(harness.told)[-6:]
            request = harness.told[names[rng.randint(0, len(names) - 1)]].request
            self.happened["copies condemned by hand"] += harness.quarantine(request.salt, request.prompt)
            self.happened["loads condemned"] += bool(loading)
            return
        tiers = list(harness.loop.directory.pools)
        tier = tiers[rng.randint(0, len(tiers) - 1)]
        slots = [int(slot) for item in cached_items(harness.loop) if (at := item.at[tier]) is not None for slot in at]
        cached = bool(slots) and not chance(rng, 20)
        last = harness.loop.directory.pools[tier].most - 1
        slot = slots[rng.randint(0, len(slots) - 1)] if cached else rng.randint(0, last)
        rank, word = rng.randint(0, len(harness.memories) - 1), rng.randint(0, harness.memory.words - 1)
        harness.corrupt(tier, slot, word, rank)
        self.happened[f"cached bytes of {tier.name.lower()}"] += cached

    @property
    def open(self) -> list[str]:
        """Requests that have not ended."""
        return [name for name, told in self.harness.told.items() if told.finished is None]

    def _open(self) -> str | None:
        names = self.open
        return names[self.rng.randint(0, len(names) - 1)] if names else None

    def _prompt(self) -> tuple[str, Ints]:
        """Salt and tokens: something new, a former prompt again, its next turn, or a fork of it; now and then under a foreign salt."""
        rng, told = self.rng, list(self.harness.told.values())
        salt, fresh = str(pick(rng, *SALTS)), self._fresh(rng.randint(1, 40))
        if told and not chance(rng, 20):
            former = told[rng.randint(max(0, len(told) - 10), len(told) - 1)]
            salt = salt if chance(rng, 10) else former.request.salt
            whole = np.concatenate([former.request.prompt, np.array(former.tokens, np.int32)])
            if chance(rng, 30):
                whole = whole[: rng.randint(0, len(whole))]
            fresh = np.concatenate([whole, fresh[: rng.randint(0, len(fresh))]])
        return salt, fresh[: self.harness.loop.longest - 1]

    def _fresh(self, count: int) -> Ints:
        """Few different tokens, so that unrelated prompts share beginnings now and then."""
        start = self.rng.randint(0, 2)
        noise = random.Random(self.rng.randint(0, 1 << 16))
        return np.array([start, *(noise.randint(0, VOCAB - 1) for _ in range(count - 1))], np.int32)


def fuzz(
    seed: int,
    actions: int = 80,
    ranks: int = 1,
    hints: int = 4,
    corrupt: int = 0,
    waits: int = 0,
    faulty: int | None = None,
) -> Driver:
    """A whole random run, to its end. Raises what the laws say."""
    driver = Driver(random.Random(seed), seed, ranks, hints, corrupt, waits, faulty)
    for _ in range(actions):
        driver.act()
    driver.end()
    return driver
