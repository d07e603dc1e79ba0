"""Who goes first: what calls and flags say of it reaches the engine."""

from __future__ import annotations

from inspect import signature
from typing import Any

import httpx
import pytest

from stepwell.cli import serve
from stepwell.server.commands.options import options_from
from tests.server.harness import Running


@pytest.mark.parametrize(
    ("said", "meant"), [({"priority": 3}, 3), ({"priority": -1000}, -1000), ({"priority": None}, 0), ({}, 0)]
)
def test_the_priority_of_a_call_reaches_the_engine(server: Running, said: dict[str, Any], meant: int) -> None:
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": [1, 2], "max_tokens": 1, "n": 2, **said})
    assert answer.status_code == 200, answer.text
    assert [request.priority for request in server.loop.seen[-2:]] == [meant, meant]


@pytest.mark.parametrize(("flags", "fair"), [({}, False), ({"salt_per_key": True}, True), ({"fair_salts": True}, True)])
def test_salts_take_turns_where_each_key_has_its_own(flags: dict[str, Any], fair: bool) -> None:
    values = {name: parameter.default for name, parameter in signature(serve).parameters.items()}
    values.update(model="m", api_key=["key-number-one-of-one"], **flags)
    assert options_from(values, frozenset()).config.fair_salts is fair


def test_they_do_not_where_that_is_said() -> None:
    values = {name: parameter.default for name, parameter in signature(serve).parameters.items()}
    values.update(model="m", api_key=["key-number-one-of-one"], salt_per_key=True, fair_salts=False)
    assert options_from(values, frozenset()).config.fair_salts is False
