"""One prompt's content is never another's: under salts, after restarts, and however weak the names on disk were made."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.disk import names
from stepwell.cache.moves import Tier
from stepwell.testing.harness import Harness
from stepwell.testing.laws import LawBroken
from tests.cache.builders import join, numbers
from tests.cases.serving import DEAR, ask, engine, rules

PROMPT = numbers(33, 1)


def shelf(**sizes: int) -> Harness:
    return engine(rules(disk=400, **sizes), costs=DEAR)  # type: ignore[arg-type]


def short_prompts(count: int, seed: int = 0) -> list[Ints]:
    """Of two blocks and a token: any two share a beginning only by chance."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 1000, 9).astype(np.int32) for _ in range(count)]


@pytest.mark.parametrize("where", ["device", "host", "disk", "disk after a restart"])
def test_what_one_salt_left_is_nothing_to_another(where: str) -> None:
    harness = shelf()
    ask(harness, "mine", PROMPT, salt="mine")
    if where == "disk after a restart":
        harness.restart()
    if where in ("host", "disk"):
        harness.flush(Tier.DEVICE, demote_first=True)
    if where == "disk":
        harness.flush(Tier.HOST)
    for other in ("", "yours", "mine ", "Mine"):
        assert ask(harness, f"with {other!r}", PROMPT, salt=other).cached == 0
    assert ask(harness, "mine again", PROMPT, salt="mine").boundary == 32


def test_tokens_that_a_rolling_hash_would_confuse_are_told_apart() -> None:
    """One token up by 31, the next down by one; two neighbours exchanged; a zero in front."""
    harness = shelf()
    ask(harness, "first", PROMPT, 1)
    shifted, exchanged = PROMPT.copy(), PROMPT.copy()
    shifted[1], shifted[2] = (PROMPT[1] + 31) % 1000, (PROMPT[2] - 1) % 1000
    exchanged[[1, 2]] = exchanged[[2, 1]]
    for restarted in (False, True):
        for kind, prompt in (("shifted", shifted), ("exchanged", exchanged), ("later", join([0], PROMPT))):
            assert ask(harness, f"{kind} {restarted}", prompt, 1, write_cache=False).cached == 0
        harness.restart()


def test_while_the_process_lives_tokens_are_compared_and_not_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """With names of 8 bits prompts collide on disk; in every tier the tree answers by tokens alone."""
    monkeypatch.setattr(names, "DIGEST", 1)
    harness = shelf(pages=24, host=30)
    prompts = short_prompts(40)
    trails = {harness.shelf.names.trail("", prompt).at(8) for prompt in prompts}
    assert len(trails) < 40, "names collide"
    for number, prompt in enumerate(prompts):
        ask(harness, f"{number}", prompt, 2)
    found = [ask(harness, f"{number} again", prompt, 2).boundary for number, prompt in enumerate(prompts[::4])]
    assert found.count(8) > 7, "right answers, and hits"
    assert harness.stats().tally.disk > 0


def test_after_a_restart_the_width_of_a_name_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens never reach the disk, so nothing can be compared with them: names of 8 bits give one prompt the content of
    another. What stands in the way is 128 bits under a secret key, and this shows that nothing else does."""
    monkeypatch.setattr(names, "DIGEST", 1)
    harness = shelf(pages=40, host=60)
    for number, prompt in enumerate(short_prompts(50)):
        ask(harness, f"{number}", prompt, 2)
    harness.restart()
    with pytest.raises(LawBroken, match=r"law [23]\b"):
        for number, prompt in enumerate(short_prompts(50, seed=1)):
            ask(harness, f"other {number}", prompt, 2)


def test_every_bit_of_a_name_counts() -> None:
    """A record whose digest differs from that of the prompt in one bit is not found."""
    assert names.DIGEST == 16, "2⁻¹²⁸ for a collision"
    for bit in range(0, 128, 9):
        harness = shelf()
        ask(harness, "first", PROMPT, 1)
        harness.restart()
        dormant = harness.shelf.dormant
        for number, record in dormant.items():
            if record.name.end == 16 and record.what == "kv":
                dormant[number] = replace(record, name=replace(record.name, digest=flipped(record.name.digest, bit)))
        assert ask(harness, f"{bit}", PROMPT, 1).cached == 0


def flipped(digest: bytes, bit: int) -> bytes:
    out = bytearray(digest)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def test_names_depend_on_a_key_that_nobody_else_has() -> None:
    """The same tokens under two keys have no name in common, so that nobody can prepare a record for a prompt."""
    one, other = (names.Names(bytes([seed]) * 32, 16) for seed in (1, 2))
    trails = [rule.trail("", PROMPT) for rule in (one, other)]
    assert not {trails[0].at(p) for p in range(34)} & {trails[1].at(p) for p in range(34)}
    salted = {one.trail(salt, PROMPT).at(32) for salt in ("", "a", "b", "A")}
    assert len(salted) == 4


def test_prompts_from_a_tiny_alphabet_are_answered_as_if_alone() -> None:
    """Beginnings are shared, split and lost all the time; each answer is judged."""
    rng = random.Random(4)
    harness = engine(rules(30, 50, disk=80, clean=0.4), costs=DEAR)
    cached = 0
    for number in range(50):
        prompt = np.array([rng.randrange(2) for _ in range(rng.randrange(1, 30))], np.int32)
        cached += ask(harness, f"{number}", prompt, 2, salt=rng.choice(("", "a"))).cached
        if number % 20 == 19:
            harness.restart()
    assert cached > 0
