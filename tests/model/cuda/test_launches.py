"""How many kernels a layer of a prompt launches: what launches cost is what a short prompt waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from triton.runtime.interpreter import GridExecutor  # noqa: E402

from stepwell.model.cuda import forward, prompts  # noqa: E402
from stepwell.model.cuda.backend import CudaBackend  # noqa: E402
from stepwell.model.cuda.forward import CudaForward  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from stepwell.sched.step import Cut  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.test_backend import EXPERTS, TOKENS, written  # noqa: E402

NO_LAUNCH = {
    "alias", "as_strided", "detach", "empty", "empty_like", "expand", "flatten", "new_empty", "permute", "select", "slice", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unflatten", "unsqueeze", "view",
}  # fmt: skip
"""Operations of torch that only describe memory."""


class Launches(TorchDispatchMode):
    """Counts kernels by name: torch's operations, and Triton's kernels as one each, whatever the interpreter does inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.inside = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name not in NO_LAUNCH and not self.inside:
            self.names.append(name)
        return func(*args, **(kwargs or {}))

    def as_one(self, name: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        self.names += [] if self.inside else [name]
        self.inside += 1
        try:
            return call(*args, **kwargs)
        finally:
            self.inside -= 1


def spied(name: str, half: Any, counted: Launches, found: dict[str, Counter[str]]) -> Any:
    def call(self: Any, *args: Any) -> Any:
        before = len(counted.names)
        out = half(self, *args)
        found[name] = Counter(counted.names[before:])
        return out

    return call


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Counter[str]]]:
    """Launches of each kind of half layer, filled while a step runs."""
    counted, found = Launches(), {}

    def launch(self: Any, *args: Any, _inner: Any = GridExecutor.__call__, **kwargs: Any) -> Any:
        return counted.as_one(self.fn.__name__, _inner, self, *args, **kwargs)

    def attend(q: Any, k: Any, v: Any, p: Any) -> Any:
        return counted.as_one("attend", torch.zeros_like, q)

    monkeypatch.setattr(GridExecutor, "__call__", launch)
    monkeypatch.setattr(prompts, "_sdpa", lambda: attend)
    monkeypatch.setattr(forward, "_FEW", 0)
    for half in ("attention", "delta_net", "mlp", "experts"):
        monkeypatch.setattr(CudaForward, half, spied(half, vars(CudaForward)[half], counted, found))
    with counted:
        yield found


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("more", "expected"),
    [({}, {"delta_net": 8, "attention": 7, "mlp": 4}), (EXPERTS, {"delta_net": 8, "attention": 7, "experts": 8})],
    ids=["dense", "experts"],
)
def test_a_layer_of_a_prompt_is_few_launches(
    tmp_path: Path, halves: dict[str, Counter[str]], more: dict[str, Any], expected: dict[str, int]
) -> None:
    rig = Rig(dummy_decoder(written(tmp_path, **more), torch.float32, make=CudaBackend), pages=60)
    rig.run(work(TOKENS, rig.table(40), 0, 30, cuts=[Cut(16, rig.image())]), work(TOKENS, rig.table(20), 0, 15, slot=3))
    assert {half: sum(names.values()) for half, names in halves.items()} == expected, halves
