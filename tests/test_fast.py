"""What `make fast` compiles, and what of it is stale."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect

from stepwell.engine.process import messages
from stepwell.sched.request import SamplingParams
from tests.test_deploy import tool
from tests.test_repository import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of three modules, one of them compiled a second after it was written."""
    cache, sched = tmp_path / "stepwell" / "cache", tmp_path / "stepwell" / "sched"
    for path in (cache / "__init__.py", cache / "tree.py", cache / "plan.py", sched / "loop.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    module = cache / "tree.cpython-311-x86_64-linux-gnu.so"
    module.touch()
    os.utime(cache / "tree.py", (1000, 1000))
    os.utime(module, (1001, 1001))
    return tmp_path


def test_nothing_compiled_here_is_older_than_its_source() -> None:
    assert not tool("fast").stale(ROOT), "make fast again, or make pure"


def test_every_decision_is_compiled_and_no_package_itself() -> None:
    found = tool("fast").sources(ROOT)
    names = {str(path.relative_to(ROOT)) for path in found}
    assert {"stepwell/cache/directory.py", "stepwell/sched/build.py", "stepwell/base/geometry.py"} <= names
    assert all(path.exists() and path.name != "__init__.py" for path in found)


def carried(kind: Any, seen: set[int]) -> Iterator[type]:
    """The dataclasses in what messages of this type carry."""
    if isinstance(kind, tuple):
        for each in kind:
            yield from carried(each, seen)
    elif isinstance(kind, inspect.Type | inspect.Field) and id(kind) not in seen:
        seen.add(id(kind))
        if isinstance(kind, inspect.DataclassType):
            yield kind.cls
        for name in kind.__struct_fields__:
            yield from carried(getattr(kind, name), seen)


def test_what_messages_carry_is_not_compiled() -> None:
    kinds = (inspect.type_info(kind) for kind in (messages.Command, messages.Answer, messages.Start))
    classes = set(carried(tuple(kinds), set()))
    assert SamplingParams in classes
    compiled = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in tool("fast").sources(ROOT)}
    assert not {found.__module__ for found in classes} & compiled, "add them to SENT in tools/fast.py"


def test_a_source_is_stale_once_it_is_newer(tree: Path) -> None:
    fast = tool("fast")
    assert fast.stale(tree) == []
    os.utime(tree / "stepwell" / "cache" / "tree.py", (1002, 1002))
    assert fast.stale(tree) == [tree / "stepwell" / "cache" / "tree.py"]


def test_what_is_not_compiled_is_not_stale(tree: Path) -> None:
    os.utime(tree / "stepwell" / "cache" / "plan.py", (9999, 9999))
    assert tool("fast").stale(tree) == []
