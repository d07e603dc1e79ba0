"""Compile what decides (`stepwell/cache`, `stepwell/sched`, and the parts of `stepwell/base` that they call all the time) with mypyc.

    python tools/fast.py            in place: an extension module beside each source, which Python prefers to it
    python tools/fast.py --wheel    a wheel with them in dist/, for this platform and this Python
    python tools/fast.py --pure     removes those in place
    python tools/fast.py --stale    fails if a source is newer than what was compiled from it

The sources stay what is read and tested first. What is compiled does the same, several times as fast, but is stale after an edit until
it is compiled again; its types are checked as it runs, and nobody can replace a function of it from outside.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUP = "stepwell.compiled"
"""Everything is one library, in which calls from module to module go past the interpreter."""
BASE = ("geometry.py", "units.py")
EXTENDED = ("sched/loop.py",)
"""Stays as it is: the engine's own loop extends it, and an interpreted class cannot have a compiled one for a base."""
SENT = (
    "cache/reuse/explain.py",
    "cache/reuse/outcome.py",
    "sched/outlook.py",
    "sched/request.py",
    "sched/retention.py",
)
"""Stay as they are: messages between processes are read by the annotations of these classes, and compiled ones keep none."""
LEVEL = "1"
"""Of the C compiler's optimisation."""
UNSEEN = (
    "--follow-imports=skip",
    "--no-warn-return-any",
    "--no-warn-unused-ignores",
    "--disable-error-code=var-annotated",
)
"""Of other packages' types nothing is used here, and reading PyTorch's takes minutes and gigabytes. `make lint` checks them all."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--wheel", action="store_true", help="build a wheel instead")
    what.add_argument("--pure", action="store_true", help="remove what was compiled")
    what.add_argument("--stale", action="store_true", help="fail if a source is newer than what was compiled from it")
    options = parser.parse_args()
    if options.stale:
        old = stale(ROOT)
        for path in old:
            print(
                f"{path.relative_to(ROOT)} is newer than what was compiled from it: `make fast` again, or `make pure`"
            )
        return int(bool(old))
    if options.wheel:
        build(["bdist_wheel"])
        return 0
    for path in compiled(ROOT):
        path.unlink()
    if not options.pure:
        build(["build_ext", "--inplace"])
    return 0


def sources(root: Path) -> list[Path]:
    """What is compiled."""
    package = root / "stepwell"
    left_out = {package / name for name in (*EXTENDED, *SENT)}
    found = {
        path for name in ("cache", "sched") for path in (package / name).rglob("*.py") if path.name != "__init__.py"
    }
    return sorted((found - left_out) | {package / "base" / name for name in BASE})


def compiled(root: Path) -> list[Path]:
    """Extension modules in place; the package has no others."""
    return sorted(path for end in ("so", "pyd") for path in (root / "stepwell").rglob(f"*.{end}"))


def stale(root: Path) -> list[Path]:
    """Sources that were changed after they were compiled."""
    built = {path.with_name(path.name.split(".")[0] + ".py"): path.stat().st_mtime for path in compiled(root)}
    return [path for path in sources(root) if path in built and path.stat().st_mtime > built[path]]


def build(words: list[str]) -> None:
    """Have setuptools do it, with what pyproject.toml says of the package."""
    from mypyc.build import mypycify  # here: the other commands do without them
    from setuptools import setup

    sys.path.insert(0, str(ROOT))
    from setup import told

    paths = [str(path.relative_to(ROOT)) for path in sources(ROOT)]
    modules = mypycify([*UNSEEN, *paths], opt_level=LEVEL, debug_level="0", group_name=GROUP)
    setup(ext_modules=modules, **told(""), script_args=["--quiet", *words])


if __name__ == "__main__":
    sys.exit(main())
