"""What comes and goes is told in order, by names that others compute from the tokens alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.base.clock import WallClock
from stepwell.cache.changes import NOTHING, Change, Journal, chain
from stepwell.cache.config import CacheConfig
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.tree import DIGEST, Item, Node
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing.faults import InstantMover
from stepwell.testing.telltale import Memory, TellTaleRunner, geometry
from tests.laws.driver import Driver

FIRST = bytes.fromhex("dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749")
SECOND = bytes.fromhex("66e3c4caffb2bf6a4e8c8fcaa79fbcb04c8f26280b6916b8a57591ccdf519877")
SALTED = bytes.fromhex("5a0df7bcf045d75a4a65fb28d80020ae454b25c6a6f51e86c19bdc5594d50b4a")
EDGES = [23, 24, 255, 256, 65535, 65536, 151936, 7, 0, 1, 2, 3, 4, 5, 6, 2**31 - 1]


def raw(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def test_digests_are_those_that_another_implementation_has_computed() -> None:
    """By cbor2 and hashlib: sha256(dumps((before, tokens, keys), canonical=True))."""
    assert chain(b"", raw([*range(16), *EDGES]), 16) == FIRST + SECOND
    assert chain(FIRST, raw(EDGES), 16, "any salt: it counts in the first block alone") == SECOND
    assert chain(b"", raw(list(range(16))), 16, "s:é") == SALTED


def number(value: int) -> bytes:
    """A number in CBOR, by the text of the standard."""
    if value < 24:
        return bytes([value])
    size, kind = (1, 24) if value < 1 << 8 else (2, 25) if value < 1 << 16 else (4, 26)
    return bytes([kind]) + value.to_bytes(size, "big")


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=90), st.sampled_from([1, 2, 16, 23, 24, 300]))
def test_each_block_names_all_before_it_and_runs_may_be_cut_anywhere(tokens: list[int], block: int) -> None:
    tokens = (tokens * block)[: max(1, len(tokens) // block) * block]
    found, last = b"", NOTHING
    head = {1: b"\x81", 2: b"\x82", 16: b"\x90", 23: b"\x97", 24: b"\x98\x18", 300: b"\x99\x01\x2c"}[block]
    for at in range(0, len(tokens), block):
        body = b"".join(map(number, tokens[at : at + block]))
        last = sha256(b"\x83\x58\x20" + last + head + body + b"\xf6").digest()
        found += last
    assert chain(b"", raw(tokens), block) == found
    half = len(tokens) // block // 2
    first = chain(b"", raw(tokens[: half * block]), block)
    assert first + chain(first[-DIGEST:], raw(tokens[half * block :]), block) == found


class Mirror:
    """What a reader of all changes believes: by tier and kind, names of blocks; and of each name its tokens and the one before."""

    def __init__(self, block: int) -> None:
        self.held: set[tuple[Tier, bool, bytes]] = set()
        self._block = block * 4

    def take(self, change: Change) -> None:
        names = [change.digests[i : i + DIGEST] for i in range(0, len(change.digests), DIGEST)]
        assert names
        keys = {(change.tier, change.rung, name) for name in names}
        assert len(keys) == len(names)
        if not change.stored:
            assert keys <= self.held, "what goes has come"
            self.held -= keys
            return
        assert not keys & self.held, "what comes was not there"
        assert chain(change.above, change.tokens, self._block // 4, change.salt) == change.digests
        self.held |= keys


def readable(directory: Directory) -> Iterator[tuple[Tier, bool, bytes]]:
    """The same, from the tree."""
    block = directory.tree.block

    def names(node: Node) -> list[bytes]:
        path = list(node.up())
        tokens = b"".join(above.raw for above in reversed(path))
        digests = chain(b"", tokens, block, path[-1].salt)  # type: ignore[attr-defined]
        return [digests[i : i + DIGEST] for i in range(0, len(digests), DIGEST)]

    def has(item: Item, tier: Tier) -> bool:
        return item.has(tier)

    for node in directory.tree.nodes():
        for tier in directory.pools:
            if has(node.kv, tier):
                yield from ((tier, False, name) for name in names(node)[node.start // block :])
            if node.rung is not None and has(node.rung.image, tier):
                yield tier, True, names(node)[-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_who_hears_of_every_change_knows_what_is_cached(seed: int) -> None:
    driver = Driver(random.Random(seed), seed, corrupt=4 * (seed % 2))
    mirror, followed = None, None
    for turn in range(80):
        directory = driver.harness.loop.directory
        if directory is not followed:  # at the start, and where another process has taken over
            directory.journal = Journal(directory.tree.block, rungs=True)
            mirror, followed = Mirror(directory.tree.block), directory
            assert not set(readable(directory))
        driver.act()
        if driver.harness.loop.directory is not followed:
            continue
        assert mirror is not None and directory.journal is not None
        for change in directory.journal.take():
            mirror.take(change)
        if turn % 8 == 7:
            assert mirror.held == set(readable(directory))
    driver.end()


def test_a_rolling_state_goes_with_its_answer() -> None:
    """The rung of an answer moves on along the node that grows, and nothing of it is dropped or placed."""
    sizes = geometry(4, 8)
    memory = Memory(sizes, 90, 60, 3)
    loop = EngineLoop(
        CacheConfig(sizes, 90, 60),
        SchedConfig(3, 64, 200, vocab=40, decode_rung_tokens=4),
        TellTaleRunner(memory, sizes, 40),
        InstantMover(memory.copy),
        WallClock(),
    )
    directory, mirror = loop.directory, Mirror(4)
    directory.journal = Journal(4, rungs=True)
    rng, moved = random.Random(1), 0
    for turn in range(300):
        if turn % 25 == 0:
            prompt = np.array([rng.randint(0, 1) for _ in range(rng.randint(9, 30))], np.int32)
            loop.submit(Request(f"r{turn}", prompt, SamplingParams(rng.randint(20, 90), ignore_eos=True)))
        loop.step(wait=0.0)
        changes = directory.journal.take()
        gone = [change.rung and not change.stored for change in changes]
        moved += any(a and b.rung and b.stored for a, b in zip(gone, changes[2:], strict=False))
        for change in changes:
            mirror.take(change)
        if turn % 5 == 4:
            assert mirror.held == set(readable(directory))
    assert moved > 10


def test_a_model_without_states_tells_of_none() -> None:
    seen = []
    for rungs in (True, False):
        driver = Driver(random.Random(3), 3)
        directory = driver.harness.loop.directory
        directory.journal = Journal(directory.tree.block, rungs=rungs)
        for _ in range(40):
            driver.act()
        seen.append({change.rung for change in directory.journal.take()})
    assert seen == [{True, False}, {False}]
