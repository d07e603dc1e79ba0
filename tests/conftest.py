"""Options of the whole suite."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

# a shell that starts tests in the background has them ignore Ctrl-C, and so would every process that a test starts and interrupts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# before anything imports Triton: its kernels run in its interpreter, without a GPU
os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
from hypothesis import settings

import stepwell.engine  # noqa: F401  before torch: it keeps waiting threads from spinning
from tests.base.test_shapes import NEXT_80B


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--laws-examples",
        type=int,
        default=0,
        metavar="N",
        help="run the engine state machine on N examples, new ones each time, instead of a fixed few",
    )
    parser.addoption("--long", action="store_true", help="also run tests marked long, and more examples of others")
    parser.addoption(
        "--by-hand", action="store_true", help="with --long, also run tests that take minutes of several cores"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: left out unless --long is given")
    config.addinivalue_line("markers", "more: tries more examples with --long")
    config.addinivalue_line("markers", "sampled(n): n of its cases, spread evenly; the others are marked long")
    config.addinivalue_line("markers", "by_hand: left out unless --by-hand is given: takes minutes of several cores")
    settings.register_profile("few", max_examples=30, deadline=None)
    settings.register_profile("many", max_examples=100, deadline=None)
    settings.load_profile("many" if config.getoption("--long") else "few")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_most_of_the_sampled_to_long_runs(items)
    unwanted = {mark for mark in ("long", "by_hand") if not config.getoption(mark)}
    left_out = [item for item in items if any(mark.name in unwanted for mark in item.iter_markers())]
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=left_out)


def _leave_most_of_the_sampled_to_long_runs(items: list[pytest.Item]) -> None:
    """Mark as long all but n cases of each test marked sampled(n): its first and last stay, and others evenly between them."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("long"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for group in cases.values():
        marker = group[0].get_closest_marker("sampled")
        assert marker is not None
        kept = {round(x) for x in np.linspace(0, len(group) - 1, min(marker.args[0], len(group)))}
        for place, item in enumerate(group):
            if place not in kept:
                item.add_marker("long")


@pytest.fixture
def empty_model(tmp_path: Path) -> str:
    """A directory that may be a checkpoint as far as the command line can tell."""
    (tmp_path / "config.json").write_text(json.dumps(NEXT_80B))
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    (tmp_path / "model.safetensors").touch()
    return str(tmp_path)
