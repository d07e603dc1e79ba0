"""What can be compared with `==`: never an array, whose comparison is another array and no answer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "stepwell").rglob("*.py"))
ARRAY = re.compile(r"\b(Ints|Words|Logits|NDArray|ndarray|Tensor)\b")


def comparing_arrays(source: str) -> Iterator[str]:
    """Names of dataclasses of `source` that hold an array themselves and would compare it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and any(map(_compares, node.decorator_list)):
            fields = [ast.unparse(part.annotation) for part in node.body if isinstance(part, ast.AnnAssign)]
            if any(ARRAY.search(field) and "Callable" not in field for field in fields):
                yield node.name


def _compares(decorator: ast.expr) -> bool:
    """Whether it makes a dataclass with an `==` of its own."""
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    if ast.unparse(name) not in ("dataclass", "dataclasses.dataclass"):
        return False
    options = decorator.keywords if isinstance(decorator, ast.Call) else []
    return not any(option.arg == "eq" and ast.unparse(option.value) == "False" for option in options)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_holds_an_array_is_equal_to_itself_alone(path: Path) -> None:
    assert not list(comparing_arrays(path.read_text("utf-8"))), "add eq=False: these are compared by identity"


def test_one_that_compares_an_array_is_found() -> None:
    held = "@dataclass(frozen=True)\nclass Held:\n    pages: Ints | None = None\n"
    assert list(comparing_arrays(held)) == ["Held"]
    assert not list(comparing_arrays(held.replace("frozen=True", "frozen=True, eq=False")))
    assert not list(comparing_arrays(held.replace("Ints", "int")))
