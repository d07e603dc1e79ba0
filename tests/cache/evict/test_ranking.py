"""What goes first."""

from __future__ import annotations

from stepwell.cache.directory import Directory
from stepwell.cache.evict.policy import LadderPolicy
from stepwell.cache.evict.ranking import Ranking, exposed
from stepwell.cache.moves import Tier
from stepwell.cache.placement import finished_answer, overtaken
from stepwell.cache.publish import pass_by, touch
from stepwell.cache.tree import Item, RungKind
from tests.cache.builders import copy_down, directory, forget, join, keep, node_ending, numbers, rung_at

PROMPT = numbers(60)
value = LadderPolicy().value


def order(shelf: Directory, tier: Tier = Tier.DEVICE) -> list[str]:
    """What would go, in order, each dropped before the next is asked for."""
    out = []
    while (item := shelf.candidates.drops[tier].pop()) is not None:
        out.append(f"{item.what} {item.node.end}")
        shelf.drop(item, tier)
    return out


def shelf_of_two() -> Directory:
    """Two conversations, the second used longer ago."""
    shelf = directory(host=0)
    for seed, now in ((0, 9.0), (1, 5.0)):
        keep(shelf, numbers(24, seed), 20, rungs=(20,), now=now)
    return shelf


def order_of_prompts(shelf: Directory) -> list[int]:
    """The conversations of `shelf_of_two`, as their last copies go."""
    out = []
    while (item := shelf.candidates.drops[Tier.DEVICE].pop()) is not None:
        shelf.drop(item, Tier.DEVICE)
        gone = [seed for seed in (0, 1) if seed not in out and shelf.survey("", numbers(24, seed)).hit is None]
        out += gone
    return out


class TestClasses:
    def test_kv_that_nothing_resumes_from_goes_first_then_by_last_use(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 40, rungs=(20,), now=9.0)
        keep(shelf, numbers(20, 1), 20, rungs=(20,), now=5.0)
        first, *rest = order(shelf)
        assert first == "kv 40"
        assert len(rest) == 4
        assert order_of_prompts(shelf_of_two()) == [1, 0], "the older conversation before the newer"

    def test_a_superseded_rung_goes_before_anything_useful(self) -> None:
        shelf = directory(host=0)
        for now, position in enumerate((8, 20, 32, 48)):
            keep(shelf, PROMPT, 48, rungs=(position,), now=10.0 + now)
        keep(shelf, numbers(20, 1), 20, rungs=(20,), now=8.0)
        keep(shelf, numbers(20, 2), 20, rungs=(20,), now=20.0)
        assert [rung_at(shelf, PROMPT, p).superseded for p in (8, 20, 32, 48)] == [True, True, False, False]
        shelf.candidates.missed(100, 100)  # else it would be spared for the gap that it leaves
        gone = order(shelf)
        assert gone[0] == "image 8" and gone.index("image 20") < gone.index("image 48")

    def test_an_image_without_its_kv_is_worth_nothing(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(40,))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 0)
        image = rung_at(shelf, PROMPT, 40).image
        assert value(image, Tier.DEVICE)[0] == 0
        assert value(image, Tier.HOST)[0], "in host it still has its KV"

    def test_below_the_device_images_outlive_kv(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20, 40), now=1.0)
        keep(shelf, numbers(16, 5), 16, rungs=(16,), now=9.0)
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 0, (20, 40))
        gone = order(shelf, Tier.HOST)
        assert [e for e in gone if e.startswith("kv")] == ["kv 40", "kv 20"]
        assert gone.index("kv 20") < gone.index("image 20")

    def test_host_keeps_what_lets_the_device_drop_at_once(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(40,))
        copy_down(shelf)
        assert order(shelf, Tier.HOST) == []


class TestLeafFirst:
    def test_kv_goes_from_the_end(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 60, rungs=(20, 40, 60), now=1.0)
        leases = [shelf.lease(rung_at(shelf, PROMPT, p).image, Tier.DEVICE) for p in (20, 40, 60)]
        assert order(shelf) == ["kv 60", "kv 40", "kv 20"]
        for lease in leases:
            shelf.release(lease)

    def test_a_run_is_not_exposed_while_a_child_is_in_the_same_tier(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        upper, lower = shelf.survey("", PROMPT).path
        assert not exposed(upper.kv, Tier.DEVICE) and exposed(lower.kv, Tier.DEVICE)
        assert exposed(upper.kv, Tier.HOST)
        assert exposed(rung_at(shelf, PROMPT, 20).image, Tier.DEVICE)

    def test_a_fork_holds_its_stem_until_both_branches_are_gone(self) -> None:
        shelf = directory(host=0)
        keep(shelf, join(PROMPT[:20], numbers(20, 1)), rungs=(40,), now=1.0)
        keep(shelf, join(PROMPT[:20], numbers(20, 2)), rungs=(40,), now=2.0)
        assert [e for e in order(shelf) if e.startswith("kv")] == ["kv 40", "kv 40", "kv 20"]


class TestSuperseding:
    def test_the_second_rung_above(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 48, rungs=(8, 20, 32))
        assert overtaken(node_ending(shelf, PROMPT, 32))[0] == [rung_at(shelf, PROMPT, p) for p in (20, 8)]
        assert [rung_at(shelf, PROMPT, p).depth for p in (8, 20, 32)] == [2, 1, 0]

    def test_never_past_a_fork(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 48, rungs=(8,))
        keep(shelf, join(PROMPT[:16], numbers(20, 1)), 36, rungs=(36,))
        keep(shelf, PROMPT, 48, rungs=(32, 48))
        assert overtaken(node_ending(shelf, PROMPT, 48))[0] == [rung_at(shelf, PROMPT, 32)]
        assert not rung_at(shelf, PROMPT, 8).superseded

    def test_nor_past_a_fork_of_many_answers(self) -> None:
        shelf = directory(pages=100)
        keep(shelf, PROMPT, 8, rungs=(8,))
        for count in range(1, 10):
            keep(shelf, join(PROMPT[:8], numbers(4, 50 + count)), 12, rungs=(12,), kind=RungKind.ROLLING)
            answer = node_ending(shelf, join(PROMPT[:8], numbers(4, 50 + count)), 12)
            above, answers = overtaken(answer)
            assert (len(above), len(answers)) == ((1, count - 1) if count <= 8 else (0, 0))

    def test_a_branch_rung_is_kept(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 48, rungs=(8,), kind=RungKind.BRANCH)
        keep(shelf, PROMPT, 48, rungs=(20, 32))
        assert not rung_at(shelf, PROMPT, 8).superseded


class TestAnswers:
    """Turn 1 is asked 16 tokens and answered up to 28; turn 2 goes on from the prompt otherwise: its client rendered the answer anew."""

    FIRST = join(PROMPT[:16], numbers(12, 1))

    def turns(self, host: int = 64) -> Directory:
        shelf = directory(host=host)
        keep(shelf, PROMPT, 16, rungs=(16,))
        keep(shelf, self.FIRST, 28, rungs=(28,), kind=RungKind.ROLLING)
        return shelf

    def test_the_next_turn_passes_over_an_answer_it_does_not_repeat(self) -> None:
        shelf = self.turns()
        (answer,) = keep(shelf, PROMPT, 48, rungs=(48,)) and overtaken(node_ending(shelf, PROMPT, 48))[1]
        assert answer is rung_at(shelf, self.FIRST, 28) and answer.superseded
        assert order(shelf)[0] == "image 28", "the first to go, as it is"

    def test_it_is_no_fork(self) -> None:
        shelf = self.turns()
        keep(shelf, PROMPT, 48, rungs=(32, 48))
        assert rung_at(shelf, PROMPT, 16).superseded

    def test_a_long_one_goes_with_its_waypoints(self) -> None:
        shelf = directory(host=64)
        keep(shelf, PROMPT, 16, rungs=(16,))
        long = join(self.FIRST, numbers(20, 2))
        for position in (24, 32):
            keep(shelf, long, position, rungs=(position,), kind=RungKind.ROLLING)
            pass_by(shelf, rung_at(shelf, long, position))
        keep(shelf, long, 48, rungs=(48,), kind=RungKind.ROLLING)
        assert [rung_at(shelf, long, p).superseded for p in (16, 24, 32, 48)] == [False, True, True, False]
        assert rung_at(shelf, long, 16).depth == 1, "waypoints make no other rung less valuable"
        keep(shelf, PROMPT, 48, rungs=(48,))
        assert all(rung_at(shelf, long, p).superseded for p in (24, 32, 48))
        assert set(order(shelf)[:3]) == {"image 24", "image 32", "image 48"}

    def test_a_waypoint_goes_before_all_that_somebody_may_ask_for_until_it_has_been_used(self) -> None:
        shelf = directory(host=64)
        keep(shelf, PROMPT, 16, rungs=(16,))
        keep(shelf, numbers(16, 5), 16, rungs=(16,), now=-1e6)
        long = join(self.FIRST, numbers(20, 2))
        keep(shelf, long, 24, rungs=(24,), kind=RungKind.ROLLING)
        pass_by(shelf, rung_at(shelf, long, 24))
        keep(shelf, long, 48, rungs=(48,), kind=RungKind.ROLLING)
        waypoint = rung_at(shelf, long, 24)
        assert value(waypoint.image, Tier.DEVICE)[0] == 0
        touch(shelf, shelf.survey("", long), waypoint, 24, 1.0)
        assert value(waypoint.image, Tier.DEVICE)[0] > 0

    def test_a_branch_of_several_nodes_without_waypoints_is_no_answer(self) -> None:
        """A rung between them has gone, and what was decided about their copies differs."""
        shelf = self.turns()
        keep(shelf, self.FIRST, 28, rungs=(24,), kind=RungKind.ROLLING)
        top, waypoint = node_ending(shelf, self.FIRST, 24), rung_at(shelf, self.FIRST, 24)
        pass_by(shelf, waypoint)
        assert finished_answer(top) == [waypoint, rung_at(shelf, self.FIRST, 28)]
        shelf.refuse(top.kv, Tier.HOST)
        shelf.drop(waypoint.image, Tier.DEVICE)
        assert top.rung is None and top.children and finished_answer(top) is None

    def test_a_waypoint_that_a_prompt_ends_at_is_one_no_more(self) -> None:
        shelf = self.turns()
        rung = rung_at(shelf, self.FIRST, 28)
        pass_by(shelf, rung)
        keep(shelf, self.FIRST, 28, rungs=(28,))
        assert rung.kind is RungKind.PROMPT_END and not rung.superseded

    def test_an_answer_still_being_given_is_not_passed_over(self) -> None:
        shelf = self.turns()
        lease = shelf.lease(node_ending(shelf, self.FIRST, 28).kv, Tier.DEVICE)
        keep(shelf, PROMPT, 48, rungs=(48,))
        assert not rung_at(shelf, self.FIRST, 28).superseded and finished_answer(lease.item.node) is None
        shelf.release(lease)

    def test_a_prompt_is_no_answer(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 16, rungs=(16,))
        keep(shelf, self.FIRST, 28, rungs=(28,))
        keep(shelf, PROMPT, 48, rungs=(48,))
        assert not rung_at(shelf, self.FIRST, 28).superseded

    def test_repeating_it_makes_up_for_it(self) -> None:
        shelf = self.turns()
        keep(shelf, PROMPT, 48, rungs=(48,))
        answer = rung_at(shelf, self.FIRST, 28)
        touch(shelf, shelf.survey("", join(self.FIRST, [1])), answer, 28, 1.0)
        assert not answer.superseded


class TestWeighedAge:
    """What stands in a queue ages as fast as its weight says."""

    def ages(self, shelf: Directory, *items: Item) -> list[float]:
        return [shelf.candidates.drops[Tier.HOST].age(item) for item in items]

    def test_below_the_device_a_superseded_image_goes_before_kv_of_its_time_and_others_after_it(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 48, rungs=(16, 32, 48), now=1000.0)
        keep(shelf, numbers(16, 5), 16, rungs=(16,), now=2000.0)
        copy_down(shelf)
        old, kv, tip = self.ages(
            shelf,
            rung_at(shelf, PROMPT, 16).image,
            node_ending(shelf, PROMPT, 16).kv,
            rung_at(shelf, PROMPT, 48).image,
        )
        assert old > kv > tip

    def test_what_is_unused_for_much_longer_goes_before_what_is_superseded(self) -> None:
        shelf = directory(host=0)
        keep(shelf, numbers(16, 5), 16, rungs=(16,), now=0.0)
        keep(shelf, PROMPT, 48, rungs=(16, 32, 48), now=99.0)
        keep(shelf, numbers(16, 6), 16, rungs=(16,), now=100.0)
        assert order(shelf)[0].endswith("16")

    def test_it_does_not_matter_how_long_an_hour_is(self) -> None:
        slow, fast = [], []
        for scale, gone in ((1.0, fast), (60.0, slow)):
            shelf = directory(120, 0)
            for now, (seed, rungs) in enumerate([(1, (8, 16, 24)), (2, (12, 24)), (3, (8, 16, 20, 24)), (4, (24,))]):
                keep(shelf, numbers(24, seed), 24, rungs=rungs, now=scale * now)
            gone += order(shelf)
        assert slow == fast and len(slow) > 8

    def test_a_rung_that_many_resume_from_outlives_others(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 48, rungs=(20,), now=1.0)
        for now in (2.0, 3.0, 4.0):
            touch(shelf, shelf.survey("", PROMPT), rung_at(shelf, PROMPT, 20), 20, now)
        keep(shelf, numbers(24, 8), 24, rungs=(24,), now=10.0)
        keep(shelf, numbers(24, 9), 24, rungs=(24,), now=12.0)
        gone = order(shelf)
        assert gone.index("image 24") < gone.index("image 20")


class TestRanking:
    def ranking(self, shelf: Directory, alive: set[int]) -> Ranking:
        return Ranking(Tier.DEVICE, lambda item: id(item) in alive, LadderPolicy(), shelf.candidates.latest)

    def items(self, shelf: Directory, count: int) -> list[Item]:
        for seed in range(count):
            keep(shelf, numbers(8, seed), 8, rungs=(8,), now=float(seed))
        return [node_ending(shelf, numbers(8, seed), 8).kv for seed in range(count)]

    def test_the_oldest_comes_first_and_each_once(self) -> None:
        shelf = directory(host=0)
        items = self.items(shelf, 4)
        ranking = self.ranking(shelf, {id(i) for i in items})
        for item in (items[2], items[0], items[3], items[1]):
            ranking.consider(item)
        assert [ranking.pop() for _ in range(5)] == [*items, None]

    def test_one_used_since_it_was_offered_is_put_back_to_its_place(self) -> None:
        shelf = directory(host=0)
        items = self.items(shelf, 3)
        ranking = self.ranking(shelf, {id(i) for i in items})
        for item in items:
            ranking.consider(item)
        items[0].node.used = 50.0
        assert [ranking.pop() for _ in range(3)] == [items[1], items[2], items[0]]

    def test_one_that_has_lost_value_counts_from_its_next_offer(self) -> None:
        shelf = directory(host=0)
        items = self.items(shelf, 3)
        ranking = self.ranking(shelf, {id(i) for i in items})
        for item in items:
            ranking.consider(item)
        items[2].node.used = -1.0
        ranking.consider(items[2])
        assert ranking.pop() is items[2]

    def test_what_is_no_candidate_is_neither_taken_nor_kept(self) -> None:
        shelf = directory(host=0)
        items = self.items(shelf, 3)
        alive = {id(i) for i in items}
        ranking = self.ranking(shelf, alive)
        for item in items:
            ranking.consider(item)
        alive.discard(id(items[0]))
        ranking.consider(items[0])
        assert ranking.pop() is items[1]

    def test_dropping_stale_entries_keeps_every_candidate(self) -> None:
        shelf = directory(host=0)
        items = self.items(shelf, 3)
        ranking = self.ranking(shelf, {id(i) for i in items})
        for use in range(1000):
            for item in items:
                item.node.used = float(use)
                ranking.consider(item)
        assert len(ranking) == 3000
        ranking.add(items[0], 3)
        assert len(ranking) == 3 and ranking.items() == {id(i) for i in items}
        assert ranking.pop() is items[0]


class TestLastingValue:
    def test_only_the_consumed_rung_of_a_long_chat_stays_fresh(self) -> None:
        """Many conversations and room for a quarter: each keeps the end it resumes from, not every rung above it."""
        shelf = directory(120, 0, grid=4)
        for turn in range(6):
            for chat in range(8):
                prompt = numbers(80, chat)
                keep(shelf, prompt, 8 * (turn + 1), rungs=(8 * (turn + 1),), now=float(10 * turn + chat))
        ends = [shelf.survey("", numbers(80, chat)).hit for chat in range(4, 8)]
        assert [hit.position for hit in ends if hit] == [48] * 4


def test_offers_are_looked_at_now_and_then_though_nobody_asks() -> None:
    """Else they would be looked at all at once, or never: what has gone would be remembered for ever."""
    shelf = directory(pages=1400, host=0)
    prompt = numbers(2800, 3)
    keep(shelf, prompt, 2800, rungs=tuple(range(4, 2800, 4)))
    shelf.candidates.settle()
    before = len(shelf.candidates.drops[Tier.DEVICE])
    for node in shelf.survey("", prompt).path[:600]:
        assert node.rung is not None
        node.rung.used = 1.0
        shelf.requeue(node.rung.image)
    assert before + 500 <= len(shelf.candidates.drops[Tier.DEVICE]) <= before + 600
