"""How the project starts Python processes of its own.

`python -m` looks for modules in the current folder first, so a file such as random.py there would run in place of the library's. Every
process is therefore started with -P, and finds this package where its parent has found it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of a process that computes nothing large: OpenBLAS would reserve memory for every core of the machine."""
_ROOT = Path(__file__).resolve().parents[2]
_SAFE = "PYTHONSAFEPATH"


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` as a program, with this Python."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """This process's environment and `more`. Where the package is not installed, its folder comes first in PYTHONPATH."""
    given = {**os.environ, **more}
    if _ROOT.name not in ("site-packages", "dist-packages"):
        given["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [given.get("PYTHONPATH")])])
    return given


@contextmanager
def importing_safely() -> Iterator[None]:
    """Within it, processes that a library starts with this Python do not look for modules in the current folder."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE]
        else:
            os.environ[_SAFE] = before
