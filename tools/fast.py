"""Compile what decides (`stepwell/cache`, `stepwell/sched`, and the parts of `stepwell/base` that they call all the time) with mypyc.

    python tools/fast.py            in place: an extension module beside each source, which Python prefers to it
    python tools/fast.py --wheel    a wheel with them in dist/, for this platform and this Python
    python tools/fast.py --pure     removes those in place
    python tools/fast.py --stale    fails if a source is newer than what was compiled from it

The sources stay what is read and tested first. What is compiled does the same, several times as fast, but is stale after an edit until
it is compiled again; its types are checked as it runs, and nobody can replace a function of it from outside.

What was compiled is kept only if it replays traces as the sources do, to the last figure: little memory, so that things go all the time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

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
EXTENSIONS = ("so", "pyd")
TRACE = "replay synthetic --conversations 60 --lanes 12 --warmup 200 --duration 600"
REPLAYS = (
    f"{TRACE} --device-tokens 6e5 --host-tokens 3e6",
    f"{TRACE} --device-tokens 6e5 --host-tokens 6e5 --disk-tokens 6e6",
)
REPLAY_S = 300
"""Of which a replay needs two on a quiet core."""


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
        return wheel()
    remove()
    if options.pure:
        return 0
    build(["build_ext", "--inplace"])
    found = differs(ROOT)
    if found:
        print(f"{found}: what was compiled is removed")
        remove()
    return int(bool(found))


def wheel() -> int:
    """Put a wheel into dist/ if what is in it replays as the sources do."""
    with TemporaryDirectory() as folder:
        build(["bdist_wheel", "--dist-dir", folder])
        (built,) = Path(folder).glob("*.whl")
        unpacked = Path(folder) / "unpacked"
        with ZipFile(built) as archive:
            archive.extractall(unpacked)
        found = differs(unpacked)
        if found:
            print(f"{found}: there is no wheel")
            return 1
        (ROOT / "dist").mkdir(exist_ok=True)
        shutil.move(built, ROOT / "dist" / built.name)
    return 0


def remove() -> None:
    """Back to the sources alone."""
    for path in compiled(ROOT):
        path.unlink()


def differs(place: Path) -> str:
    """Which replay ends otherwise with the package in `place` than with the sources alone; empty if none does. Some ten seconds."""
    with TemporaryDirectory() as folder:
        pure = Path(folder)
        left_out = shutil.ignore_patterns(*(f"*.{end}" for end in EXTENSIONS), "__pycache__")
        shutil.copytree(ROOT / "stepwell", pure / "stepwell", ignore=left_out)
        for words in REPLAYS:
            if replayed(place, words) != replayed(pure, words):
                return f"`stepwell {words}` ends otherwise once compiled"
    return ""


def replayed(place: Path, words: str) -> dict[str, Any] | str:
    """The whole report of a replay with the package in `place`, without how long it took; or how it failed."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        ended = subprocess.run(
            [sys.executable, "-m", "stepwell", *words.split(), "--json-file", str(report)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(place)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=REPLAY_S,
        )
        if ended.returncode:
            print(ended.stderr.strip().rpartition("\n")[2])
            return f"status {ended.returncode} in {place}"
        told: dict[str, Any] = json.loads(report.read_text("utf-8"))
    del told["figures"]["requests_per_s"]
    return told


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
    return sorted(path for end in EXTENSIONS for path in (root / "stepwell").rglob(f"*.{end}"))


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
