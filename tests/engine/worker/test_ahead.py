"""Kernels compiled before they are launched: without a GPU, by a driver that only says which one it would be."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.engine.worker import ahead  # noqa: E402
from stepwell.engine.worker.ahead import Kernel, compile_ahead, compile_all, rehearsal  # noqa: E402

ON_NO_GPU = """
import contextlib, torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction
from stepwell.engine.worker.ahead import compile_all, rehearsal
from stepwell.engine.worker.compiles import Compiles
from stepwell.ops.triton.images import copy_images

class Driver:
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

triton.runtime.driver.set_active(Driver())
torch.cuda.device = lambda device: contextlib.nullcontext()
rows = torch.zeros(8, 512, dtype=torch.uint8)
parts = torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, 4, 8), torch.zeros(0, 3, 8)
numbers = torch.arange(3), torch.arange(6)

def copy():
    for save in (True, False, True):
        copy_images(rows, parts, *numbers, 2, save)

compiles, launch = Compiles(), JITFunction.run
compiles.listen()
with rehearsal() as kernels:
    copy()
assert JITFunction.run is launch and triton.knobs.runtime.jit_cache_hook is None
print(len(kernels), compiles.at_start)
compile_all(kernels, torch.device("cuda"))
print(compiles.at_start)
with rehearsal() as again:
    copy()
print(len(again))
compiles.serve()
compile_all(kernels, torch.device("cuda"))  # from Triton's cache on disk
print(compiles.serving)
"""


def test_a_rehearsal_launches_nothing_and_what_it_notes_is_compiled_once(tmp_path: Any) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ON_NO_GPU], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["2", "0", "2", "0", "0"]


def test_other_threads_launch_as_ever_while_one_rehearses(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs
    from triton.runtime.jit import JITFunction

    seen: list[Any] = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *, grid, warmup: seen.append(warmup))

    def launch() -> None:
        JITFunction.run(None, grid=(1,), warmup=False)
        fn = SimpleNamespace(jit_function=launch)
        seen.append(knobs.runtime.jit_cache_hook(fn=fn, compile={"specialization_data": ""}))  # type: ignore[misc]

    with rehearsal() as kernels:
        beside = threading.Thread(target=launch)
        beside.start()
        beside.join()
        assert seen == [False, None] and not kernels
        launch()
        assert seen[2:] == [True, True] and len(kernels) == 1


class Compiler:
    """Counts what it compiles; a rehearsal notes the kernels that it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fresh: list[int]) -> None:
        self.fresh, self.compiled, self.rehearsed = fresh, 0, 0
        monkeypatch.setattr(ahead, "rehearsal", lambda: pytest.MonkeyPatch.context())
        monkeypatch.setattr(ahead, "compile_all", self.compile)

    def compile(self, kernels: Any, device: Any) -> None:
        self.compiled += self.fresh[self.rehearsed - 1]

    def rehearse(self) -> None:
        self.rehearsed += 1

    def run(self, rehearsals: list[Callable[[], None]]) -> int:
        compile_ahead(torch.device("cpu"), rehearsals, lambda: self.compiled)
        return self.rehearsed


@pytest.mark.parametrize(("fresh", "rehearsed"), [([0, 5], 1), ([3, 5], 2), ([3, 0], 2)])
def test_where_a_little_needs_no_compiler_the_rest_is_not_rehearsed(
    monkeypatch: pytest.MonkeyPatch, fresh: list[int], rehearsed: int
) -> None:
    compiler = Compiler(monkeypatch, fresh)
    assert compiler.run([compiler.rehearse, compiler.rehearse]) == rehearsed


def test_a_rehearsal_that_fails_is_told_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = Compiler(monkeypatch, [1])

    def failing() -> None:
        raise RuntimeError("CUDA out of memory\nmore")

    assert compiler.run([failing, compiler.rehearse]) == 0
    assert "one by one: CUDA out of memory" in caplog.text and "more" not in caplog.text


def test_a_kernel_that_cannot_be_compiled_ahead_is_left_to_its_launch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = []

    class Function:
        cache_key = ""
        __name__ = "_some_kernel"

        def preload(self, wanted: str) -> None:
            if wanted == "bad":
                raise ValueError("PTX")
            made.append(wanted)

    monkeypatch.setattr(torch.cuda, "device", lambda device: pytest.MonkeyPatch.context())
    compile_all([Kernel(Function(), wanted) for wanted in ("a", "bad", "b")], torch.device("cuda"))
    assert sorted(made) == ["a", "b"] and "_some_kernel cannot be compiled ahead: PTX" in caplog.text
