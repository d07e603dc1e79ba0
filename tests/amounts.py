"""How much runs by default, and how much of it with `--long` alone: `make test` is to stay quick (it takes seven minutes on two cores).

@pytest.mark.long             a test that is left out by default
long(1, 64)                   a row of parameters that is
@pytest.mark.more             a test that does more with `--long`: it asks `amount`
"""

from __future__ import annotations

from typing import Any

import pytest


def long(*values: Any, id: str | None = None) -> Any:
    """A row for `pytest.mark.parametrize` that runs with `--long` alone."""
    return pytest.param(*values, id=id, marks=pytest.mark.long)


def amount(config: pytest.Config, few: int, many: int) -> int:
    """How many examples to try: `few` by default, `many` with `--long`."""
    return many if config.getoption("--long") else few
