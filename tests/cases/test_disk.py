"""A disk that fails, is slow, is full, or was cut off: what is found there is right, and what is not there costs one try."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Move, Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.testing.faults import Fate, FaultPlan, Where
from stepwell.testing.harness import Harness
from tests.cache.builders import join, numbers
from tests.cases.serving import DEAR, ask, engine, history, outcome, rules, served, submit

WRITES = Where(target=Tier.DISK)
READS = Where(source=Tier.DISK)
LONG = numbers(65, 1)


def with_disk(
    faults: FaultPlan | None = None, pages: int = 64, host: int = 128, disk: int = 256, **sizes: int
) -> Harness:
    """Chunks of 16 tokens: a record of KV has at most 4 pages."""
    return engine(rules(pages, host, disk=disk, clean=0.2, **sizes), faults, costs=DEAR)  # type: ignore[arg-type]


def only_disk(harness: Harness) -> None:
    """Nothing is left anywhere else."""
    harness.drain()
    harness.flush(Tier.DEVICE)
    harness.flush(Tier.HOST)


class Noting(FaultPlan):
    """No faults; keeps every copy to disk."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Move] = []

    def fate(self, move: Move) -> Fate:
        if WRITES.fits(move):
            self.written.append(move)
        return super().fate(move)


@pytest.mark.parametrize("answer", [1, 20])
def test_a_prompt_that_ends_on_the_grid_is_found_on_disk_by_itself_and_by_its_next_turn(answer: int) -> None:
    harness = with_disk(grid=8, image=2)
    ask(harness, "first", LONG[:64], answer)
    only_disk(harness)
    assert ask(harness, "again", LONG[:64], 1, write_cache=False).boundary == 56
    only_disk(harness)
    assert ask(harness, "next", LONG, 1, write_cache=False).boundary == 64


class TestWritesThatFail:
    @pytest.mark.parametrize("copied", ["none", "half", "all"])
    @pytest.mark.parametrize("what", ["kv", "image"])
    @pytest.mark.parametrize("after", ["flush", "restart"])
    def test_what_was_not_written_is_not_found(self, what: str, copied: str, after: str) -> None:
        """The second of three turns fails to be written: nothing of it, or past it, comes from disk; what is before it does."""
        harness = with_disk()
        ask(harness, "one", LONG[:17], 1)
        harness.faults.fail(Where(what, target=Tier.DISK), count=1, copied=copied)  # type: ignore[arg-type]
        ask(harness, "two", LONG[:33], 1)
        assert harness.mover.tally["failed"] == 1
        if after == "restart":
            harness.restart()
        else:
            only_disk(harness)
        how = ask(harness, "again", LONG[:33], 1)
        assert (how.boundary, how.disk) == (16, 16)

    @pytest.mark.parametrize("way", ["flush", "restart"])
    def test_a_write_under_way_is_not_found(self, way: str) -> None:
        """Asked for again while it runs, the prompt comes from where it is still held; after a restart, from nowhere."""
        harness = with_disk()
        harness.faults.delay(WRITES, polls=60)
        submit(harness, "one", LONG, 1)
        for _ in range(12):
            harness.step()
        assert harness.loop.directory.in_flight
        if way == "restart":
            harness.restart()
        else:
            harness.flush(Tier.DEVICE)
            harness.flush(Tier.HOST)
        submit(harness, "two", LONG, 1)
        while harness.told["two"].outcome is None:
            harness.step()
        assert outcome(harness, "two").disk == 0
        assert outcome(harness, "two").boundary == (0 if way == "restart" else 64)
        harness.drain()
        only_disk(harness)
        assert ask(harness, "three", LONG, 1).disk == 64


@pytest.mark.parametrize("restarted", [False, True])
class TestReadsThatFail:
    """A record is missing, torn or flipped: the store reports a failed copy."""

    @pytest.mark.parametrize("what", ["kv", "image"])
    def test_one_failure_then_it_is_gone_and_by_the_second_try_it_is_back(self, what: str, restarted: bool) -> None:
        harness = with_disk()
        ask(harness, "one", LONG, 1)
        only_disk(harness)
        if restarted:
            harness.restart()
        harness.faults.fail(Where(what, source=Tier.DISK), count=1, copied="half")  # type: ignore[arg-type]
        first = ask(harness, "first try", LONG, 1)
        assert first.reason is (Reason.LOAD_FAILED_KV if what == "kv" else Reason.LOAD_FAILED_STATE)
        assert (first.disk, first.loaded) == (0, False)
        only_disk(harness)
        again = ask(harness, "second try", LONG, 1)
        assert (again.disk, again.reason) == (64, Reason.COMPLETE), "computed once, and written once more"
        harness.restart()
        assert ask(harness, "after a restart", LONG, 1).disk == 64

    @pytest.mark.parametrize("what", ["kv", "image"])
    def test_what_failed_is_in_no_index_even_if_it_is_never_written_again(self, what: str, restarted: bool) -> None:
        harness = with_disk()
        ask(harness, "one", LONG, 1)
        only_disk(harness)
        if restarted:
            harness.restart()
        harness.faults.fail(Where(what, source=Tier.DISK), count=1).fail(WRITES)  # type: ignore[arg-type]
        ask(harness, "first try", LONG, 1)
        harness.restart()
        how = ask(harness, "second try", LONG, 1)
        assert how.disk == 0 and how.reason not in (Reason.LOAD_FAILED_KV, Reason.LOAD_FAILED_STATE)


class TestRestarts:
    @pytest.mark.parametrize("seed", range(6))
    def test_killed_at_any_moment_what_is_found_is_right(self, seed: int) -> None:
        """Kills in the middle of writes, reads and answers; every answer afterwards is the cold one."""
        rng = random.Random(seed)
        faults = FaultPlan(rng).delay(WRITES, polls=3, chance=0.6).fail(WRITES, chance=0.1, copied="half")
        harness = with_disk(faults, pages=40, host=60, disk=90)
        stems = [numbers(rng.choice((20, 33, 50)), number) for number in range(4)]
        from_disk = 0
        for life in range(8):
            for number in range(4):
                name = f"{life}.{number}"
                submit(harness, name, join(rng.choice(stems), numbers(5, rng.randrange(1000))), 5)
                for _ in range(rng.randrange(12)):
                    harness.step()
            if rng.random() < 0.5:
                harness.drain()
            harness.restart()
            from_disk += harness.past[-1].tally.disk
        harness.drain()
        assert from_disk > 0

    def test_an_identical_prompt_hits_all_there_is_in_the_next_round_however_often_the_process_was_replaced(
        self,
    ) -> None:
        harness = with_disk()
        ask(harness, "one", LONG, 1)
        for life in range(4):
            harness.restart()
            how = ask(harness, f"{life}", LONG, 1)
            assert (how.disk, how.reason) == (64, Reason.COMPLETE)

    @pytest.mark.parametrize(
        ("second", "third"),
        [
            (LONG[:45], LONG[:49]),
            (LONG[:45], join(LONG[:49], numbers(20, 4))),
            (join(LONG[:44], numbers(12, 5)), LONG[:49]),
            (LONG[:61], LONG[:49]),
        ],
        ids=["shorter-then-same", "shorter-then-longer", "parted-then-same", "longer-then-same"],
    )
    def test_records_of_three_processes_that_overlap_are_one_content(self, second: Ints, third: Ints) -> None:
        """The second process writes a part of what the first one's record holds, under a name of its own."""
        harness = with_disk()
        ask(harness, "first", LONG[:49], 1)
        harness.restart()
        ask(harness, "second", second, 1)
        harness.restart()
        assert ask(harness, "third", third, 1).disk == 48

    def test_what_is_on_disk_is_found_while_others_are_being_written(self) -> None:
        harness = with_disk()
        ask(harness, "one", LONG, 1)
        only_disk(harness)
        harness.faults.delay(WRITES, polls=20)
        for number in range(4):
            submit(harness, f"writer {number}", numbers(33, 10 + number), 3)
        for _ in range(12):
            harness.step()
        submit(harness, "two", LONG, 1)
        while harness.told["two"].outcome is None:
            harness.step()
        assert harness.loop.directory.in_flight and outcome(harness, "two").disk == 64
        harness.drain()

    def test_use_of_the_disk_is_the_same_after_a_restart_and_what_is_too_much_goes(self) -> None:
        """A gauge that began at nothing would never evict."""
        harness = with_disk(disk=60)
        for number in range(3):
            ask(harness, f"{number}", numbers(65, number), 1)
        before = harness.loop.directory.use(Tier.DISK)
        assert before.cached == 3 * 17
        harness.restart()
        after = harness.loop.directory.use(Tier.DISK)
        assert (after.free, after.cached, after.total) == (before.free, before.cached, before.total)
        for number in range(3, 6):
            ask(harness, f"{number}", numbers(65, number), 1)
            use = harness.loop.directory.use(Tier.DISK)
            assert use.free + use.cached == 60
        harness.restart()
        assert ask(harness, "newest", numbers(65, 5), 1).disk == 64
        assert ask(harness, "oldest", numbers(65, 0), 1).disk == 0


class TestRoom:
    @pytest.mark.parametrize("host", [0, 20])
    def test_a_load_from_disk_needs_no_room_in_host(self, host: int) -> None:
        """Host is full of what is being written, which cannot go."""
        harness = with_disk(host=host)
        ask(harness, "one", LONG, 1)
        only_disk(harness)
        harness.faults.delay(WRITES, polls=40)
        for number in range(3):
            submit(harness, f"other {number}", numbers(33, 10 + number), 3)
        for _ in range(20):
            harness.step()
        submit(harness, "two", LONG, 1)
        for _ in range(20):
            harness.step()
        served(harness, "two")
        assert outcome(harness, "two").disk == 64
        harness.drain()

    def test_a_long_chat_is_written_once(self) -> None:
        """Each turn adds to what is there: no byte of KV is written twice, and no image."""
        noting = Noting()
        harness = with_disk(noting, pages=200, host=300, disk=500, grid=8)
        chat = numbers(30, 1)
        for turn in range(24):
            ask(harness, f"{turn}", chat, 5)
            chat = join(history(harness, f"{turn}"), numbers(6, 100 + turn))
        names = [(move.what, name) for move in noting.written for name in move.names]
        kv = Counter(at for what, name in names if what == "kv" for at in range(name.start, name.end, 4))
        images = Counter(name.end for what, name in names if what == "image")
        assert max(kv.values()) == 1 and max(images.values()) == 1
        pages = sum(len(move.source.slots) for move in noting.written)
        assert pages <= 1.2 * (len(kv) + len(images)) and len(kv) >= len(chat) // 4 - 6
