"""Keys and the salts that come with them."""

from __future__ import annotations

import pytest

from stepwell.base.errors import ConfigError
from stepwell.server.http.keys import Caller, Keys

FIRST, SECOND = "key-number-1", "key-number-2"


def test_without_keys_everyone_may_call() -> None:
    assert not Keys().required and Keys().owner(None) == Keys().owner("Bearer anything") == ""


@pytest.mark.parametrize("header", [None, "", FIRST, f"Basic {FIRST}", "Bearer", "Bearer key-number-3", "Bearer é"])
def test_only_a_key_as_bearer_is_let_in(header: str | None) -> None:
    assert Keys([FIRST, SECOND]).owner(header) is None


def test_any_of_several_keys_is_let_in() -> None:
    keys = Keys([FIRST, SECOND])
    owners = [keys.owner(f"Bearer {FIRST}"), keys.owner(f"bearer  {SECOND}")]
    assert len(set(owners)) == 2 and {keys.salt_of(owner or "") for owner in owners} == {""}


def test_a_key_may_come_in_a_header_of_its_own() -> None:
    keys = Keys([FIRST, SECOND])
    mine = keys.owner(f"Bearer {FIRST}")
    assert keys.owner(None, FIRST) == keys.owner("Bearer none-of-them", FIRST) == mine
    assert keys.owner(f"Bearer {FIRST}", "none-of-them") == mine
    assert keys.owner(None, "none-of-them") is None and keys.owner(FIRST, "") is None


def test_each_key_has_a_salt_of_its_own_which_does_not_tell_the_key() -> None:
    keys = Keys([FIRST, SECOND], salt_per_key=True)
    one, two = (keys.salt_of(keys.owner(f"Bearer {key}") or "") for key in (FIRST, SECOND))
    assert one and two and one != two and FIRST not in one
    assert Keys([SECOND, FIRST], salt_per_key=True).owner(f"Bearer {FIRST}") == one, "it outlives a restart"


def test_a_caller_cannot_name_another_ones_salt() -> None:
    mine, yours = Caller("r", "aa"), Caller("r", "bb")
    salts = {caller.salted(named) for caller in (mine, yours) for named in (None, "x", "aa:", "bb:")}
    assert len(salts) == 8
    assert Caller("r").salted(None) == "" and Caller("r").salted("x") == "x"


@pytest.mark.parametrize("keys", [["short"], ["with a space"], ["non-ascii-é"], [""]])
def test_keys_that_cannot_be_sent_or_are_guessed_are_refused(keys: list[str]) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        Keys(keys)


def test_a_salt_per_key_needs_keys() -> None:
    with pytest.raises(ConfigError, match="--salt-per-key"):
        Keys([], salt_per_key=True)


def test_metrics_may_have_a_key_that_opens_nothing_else() -> None:
    assert Keys([FIRST]).may_read_metrics(None)
    keys = Keys([FIRST], metrics_key=SECOND)
    assert keys.may_read_metrics(f"Bearer {SECOND}") and keys.may_read_metrics(None, SECOND)
    assert not any(keys.may_read_metrics(header) for header in (None, "", f"Bearer {FIRST}", SECOND))
    assert keys.owner(f"Bearer {SECOND}") is None
    with pytest.raises(ConfigError, match="--metrics-key must have"):
        Keys(metrics_key="short")
