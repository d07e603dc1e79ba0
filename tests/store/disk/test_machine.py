"""Random writes, reads, forgets, divides, faults and restarts against a dict of what should be there."""

from __future__ import annotations

import errno
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Divide, Forget, Touch
from tests.store.disk.rig import BLOCK, Chat, Rig

SHARED = Chat(0, 64)
CHATS = [SHARED, SHARED.fork(16, 1), SHARED.fork(28, 2), Chat(3, 64), Chat(3, 64, "other salt")]


@dataclass(frozen=True, slots=True)
class Held:
    """What slots hold: KV [start, end) of a conversation, or its image at `end`. `named`: a later process can find it."""

    what: str
    chat: int
    start: int
    end: int
    slots: Ints
    named: bool = True


class DiskMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.rig = Rig(self.path / "c")
        self.held: list[Held] = []

    def teardown(self) -> None:
        self.rig.store.close()
        shutil.rmtree(self.path)

    def check(self, held: Held) -> None:
        chat = CHATS[held.chat]
        if held.what == "kv":
            assert self.rig.holds(chat, held.start, held.end, held.slots)
        else:
            assert self.rig.holds_image(chat, held.end, held.slots)

    @rule(chat=st.integers(0, len(CHATS) - 1), start=st.integers(0, 14), blocks=st.integers(1, 9), fails=st.booleans())
    def write(self, chat: int, start: int, blocks: int, fails: bool) -> None:
        start, end = start * BLOCK, min(start + blocks, 16) * BLOCK
        slots = self.rig.take((end - start) // BLOCK)
        move = self.rig.saving(CHATS[chat], start, end, slots)
        if fails:
            self.rig.files.fail("sync", errno.EIO, count=1)
        [report] = self.rig.run([move])
        self.rig.files.heal()
        self.rig.clock.advance(100)
        if not report.ok:
            self.rig.run([Forget(slots)])
            return
        at = 0
        for name in move.names:  # one record each
            pages = (name.end - name.start) // BLOCK
            self.held.append(Held("kv", chat, name.start, name.end, slots[at : at + pages]))
            at += pages

    @rule(chat=st.integers(0, len(CHATS) - 1), at=st.integers(1, 16))
    def write_image(self, chat: int, at: int) -> None:
        self.held.append(Held("image", chat, at * BLOCK, at * BLOCK, self.rig.save_image(CHATS[chat], at * BLOCK)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self.check(data.draw(st.sampled_from(self.held)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        part = data.draw(st.integers(1, len(held.slots)))
        self.rig.run([Forget(held.slots[:part])])
        if part < len(held.slots):
            if held.what == "kv":
                rest = Held("kv", held.chat, held.start + part * BLOCK, held.end, held.slots[part:], named=False)
                self.held.append(rest)
            else:
                self.rig.run([Forget(held.slots[part:])])

    @precondition(lambda self: any(len(h.slots) > 1 and h.what == "kv" and h.named for h in self.held))
    @rule(data=st.data())
    def divide(self, data: st.DataObject) -> None:
        fit = [i for i, h in enumerate(self.held) if len(h.slots) > 1 and h.what == "kv" and h.named]
        held = self.held.pop(data.draw(st.sampled_from(fit)))
        cut = data.draw(st.integers(1, len(held.slots) - 1))
        at = held.start + cut * BLOCK
        digest = self.rig.trail(CHATS[held.chat]).at(at)
        self.rig.run([Divide(int(held.slots[cut - 1]), int(held.slots[cut]), at, digest), Touch(held.slots)])
        self.held.append(Held("kv", held.chat, held.start, at, held.slots[:cut]))
        self.held.append(Held("kv", held.chat, at, held.end, held.slots[cut:]))

    @rule(kills=st.booleans())
    def restart(self, kills: bool) -> None:
        """The next process finds what has a name, and adopts it."""
        if kills:
            self.rig.store._owned.lock.close()  # whatever the process knew is gone; what the kernel has is not
            self.rig = Rig(self.path / "c")
        else:
            self.rig = self.rig.again()
        before, self.held = [h for h in self.held if h.named], []
        wanted: set[tuple[str, bytes, int, int]] = set()
        for held in before:
            digest = self.rig.trail(CHATS[held.chat]).at(held.end)
            key = (held.what, digest, held.start, held.end)
            if key in wanted:
                continue
            wanted.add(key)
            found = self.rig.under(self.rig.trail(CHATS[held.chat]).at(held.start))
            fitting = [d for d in found if (d.what, d.name.digest, d.name.start, d.name.end) == key]
            assert fitting, f"{held} was lost"
            self.held.append(Held(held.what, held.chat, held.start, held.end, self.rig.adopt(fitting[0])))
            for twin in fitting[1:]:
                self.rig.store.catalogue.discard(twin)
        self.rig.run([])
        self.rig.store.catalogue.trim_dormant(1 << 30)
        self.rig.run([])

    @invariant()
    def counts_hold(self) -> None:
        tools = self.rig.store._tools
        assert tools.ledger.pending == 0
        live = sum(segment.live for segment in tools.segments.all.values())
        assert live == tools.catalogue.pages + sum(len(held.slots) for held in self.held)

    @invariant()
    def everything_is_there(self) -> None:
        for held in self.held[-3:]:
            self.check(held)


TestDisk = DiskMachine.TestCase
TestDisk.settings = settings(
    max_examples=10, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
