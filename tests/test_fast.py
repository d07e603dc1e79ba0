"""What `make fast` compiles, and what of it is stale."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect
from mypy import build
from mypy.fscache import FileSystemCache
from mypy.main import process_options
from mypy.nodes import ComparisonExpr
from mypy.types import Instance, TupleType, Type, UnionType, get_proper_type

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


def identities(paths: list[Path]) -> list[str]:
    """Lines that ask whether two things are one and the same, and their types, where compiled code holds them by value: tuples, numbers."""
    files, options = process_options([*tool("fast").UNSEEN, *map(str, paths)], fscache=FileSystemCache())
    options.export_types, options.incremental, options.cache_dir = True, False, os.devnull
    result = build.build(files, options)
    assert not result.errors, result.errors
    found = []
    for node in (node for node in result.types if isinstance(node, ComparisonExpr)):
        asked = [sides for word, *sides in node.pairwise() if word in ("is", "is not")]
        kinds = [[result.types.get(side) for side in sides] for sides in asked]
        found += [f"{node.line}: {sides[0]}, {sides[1]}" for sides in kinds if all(map(by_value, sides))]
    return found


def by_value(kind: Type | None) -> bool:
    """Whether compiled code may hold it by value, and make a new object of it whenever one is asked for."""
    proper = get_proper_type(kind)
    if isinstance(proper, UnionType):
        return any(by_value(item) for item in proper.items)
    number = isinstance(proper, Instance) and proper.type.fullname in ("builtins.int", "builtins.float")
    return number or isinstance(proper, TupleType)


def test_nothing_compiled_asks_for_the_identity_of_a_value() -> None:
    assert not identities(tool("fast").sources(ROOT)), "compare what is in them"


def test_it_is_noticed_if_something_does(tmp_path: Path) -> None:
    """As the ranking of candidates did: compiled, it found none of them."""
    path = tmp_path / "lately.py"
    path.write_text(
        "def latest(last: dict[str, tuple[float, str]], heap: list[tuple[float, str]]) -> bool:\n"
        "    entry = heap[0]\n"
        "    assert last is not None and entry is not None\n"
        "    return last.get(entry[1]) is entry\n"
    )
    assert identities([path]) == ["4: tuple[float, str] | None, tuple[float, str]"]


@pytest.mark.long
def test_a_replay_that_fails_or_ends_otherwise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = tool("fast")
    monkeypatch.setattr(fast, "REPLAYS", ("replay synthetic --conversations 2 --lanes 1 --warmup 0 --duration 60",))
    assert fast.differs(ROOT) == ""
    shutil.copytree(ROOT / "stepwell", tmp_path / "stepwell", ignore=shutil.ignore_patterns("__pycache__"))
    made = tmp_path / "stepwell" / "replay" / "synthetic.py"
    text = made.read_text("utf-8")
    made.write_text(text.replace("growth: tuple[float, float] = (727.0", "growth: tuple[float, float] = (728.0"))
    assert "ends otherwise" in fast.differs(tmp_path)
    made.write_text("raise SystemError('planted')\n")
    assert "ends otherwise" in fast.differs(tmp_path)


def test_a_source_is_stale_once_it_is_newer(tree: Path) -> None:
    fast = tool("fast")
    assert fast.stale(tree) == []
    os.utime(tree / "stepwell" / "cache" / "tree.py", (1002, 1002))
    assert fast.stale(tree) == [tree / "stepwell" / "cache" / "tree.py"]


def test_what_is_not_compiled_is_not_stale(tree: Path) -> None:
    os.utime(tree / "stepwell" / "cache" / "plan.py", (9999, 9999))
    assert tool("fast").stale(tree) == []
