"""Print source lines by package, and the largest files and functions: growth should be seen.

A line counts if it holds code: blank lines, comments and docstrings do not.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_LARGEST = 8


@dataclass(frozen=True, slots=True)
class Size:
    """`lines` of something, whitespace and prose included unless said otherwise."""

    lines: int
    name: str


def code_lines(text: str) -> int:
    """Lines of `text` that hold code."""
    prose = docstring_lines(ast.parse(text))
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - prose)


def docstring_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines that hold a string on its own."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def functions(path: Path) -> list[Size]:
    """Every function and method of a file, with all its lines."""
    return [
        Size((node.end_lineno or node.lineno) - node.lineno + 1, f"{path}:{node.lineno} {node.name}")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def files(root: Path) -> list[Size]:
    """Every source file under `root`, with all its lines."""
    return [Size(path.read_text("utf-8").count("\n"), str(path)) for path in sorted(root.rglob("*.py"))]


def packages(root: Path) -> Counter[str]:
    """Lines of code by first-level package of `root`."""
    count: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        count[inside.parts[0] if len(inside.parts) > 1 else "(top)"] += code_lines(path.read_text("utf-8"))
    return count


def show(title: str, sizes: list[Size]) -> None:
    """Print the largest of `sizes`."""
    print(f"\n{title}")
    for size in sorted(sizes, key=lambda size: -size.lines)[:_LARGEST]:
        print(f"{size.lines:7,}  {size.name}")


def main(root: Path) -> None:
    """Print the report on the package at `root`."""
    by_package = packages(root)
    print("lines of code, without blank lines, comments and docstrings")
    for name, lines in by_package.most_common():
        print(f"{lines:7,}  {name}")
    print(f"{by_package.total():7,}  all")
    show("largest files (all lines)", files(root))
    show("largest functions (all lines)", [size for path in sorted(root.rglob("*.py")) for size in functions(path)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
