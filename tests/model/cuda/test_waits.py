"""Launching a step waits for nothing that the device computes, and sends only from pinned memory.

There is no device here, so what would wait for one is refused: reading numbers out of tensors, shapes that depend on them, and tensors
made of host numbers anywhere but where they are staged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes  # noqa: E402

import stepwell  # noqa: E402
from stepwell.model.backend import Prepared  # noqa: E402
from stepwell.model.cuda.backend import CudaBackend  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import Cut, FromImage, Sample, Score, Step, Work  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.shapes import EXPERTS, TOKENS, written  # noqa: E402

OWN = str(Path(stepwell.__file__).parent)
STAGING = str(Path(OWN) / "model" / "cuda" / "plans.py")
WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "index.Tensor",
    "index_put",
    "masked_select",
    "_unique2",
    "unique_dim",
    "equal.",
)


class Switch:
    on = False


class Refusing(TorchDispatchMode):
    """Operations that read a tensor's numbers on the host, or that turn lists into indices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not Switch.on or not any(f"aten.{waiting}" in name for waiting in WAITING), (
            f"{name} waits for the device"
        )
        return func(*args, **(kwargs or {}))


def refusing(name: str, real: Callable[..., Any], allowed: tuple[str, ...]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        assert not Switch.on or not caller.startswith(OWN) or caller in allowed, (
            f"{name} at {caller}:{sys._getframe(1).f_lineno}"
        )
        return real(*args, **kwargs)

    return call


@contextmanager
def nothing_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, Refusing():
        for name in ("tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__"):
            patch.setattr(torch.Tensor, name, refusing(name, getattr(torch.Tensor, name), (STAGING,)))
        for name in ("tensor", "as_tensor", "from_numpy"):
            patch.setattr(torch, name, refusing(name, getattr(torch, name), (STAGING,)))
        Switch.on = True
        try:
            yield
        finally:
            Switch.on = False


def by_a_library(function: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in here for a library's kernel may wait."""

    def call(*args: Any) -> Any:
        Switch.on = False
        try:
            with _disable_current_modes():
                return function(*args)
        finally:
            Switch.on = True

    return call


def test_what_waits_is_refused() -> None:
    row = torch.zeros(3)
    for waiting in (lambda: row[[0, 1]], lambda: row.nonzero(), lambda: row.sum().item(), lambda: row[row > 0]):
        with pytest.raises(AssertionError), nothing_waits():
            waiting()


HISTORY = np.arange(5, dtype=np.int32)
SPECIAL = SamplingParams(
    temperature=1.0, repetition_penalty=1.2, presence_penalty=0.5, logit_bias=((3, 1.0),), logprobs=2, min_tokens=99,
    stop_token_ids=(4,), allowed=(1, 2, 3), bad_words=((4, 2),),
)  # fmt: skip


def steps(rig: Rig, images: list[np.ndarray], tables: list[np.ndarray]) -> list[tuple[Work, ...]]:
    """Prompts with cuts, several at once, resumed from an image, beside decodes; decodes of every kind of draw."""
    warm = Sample(SamplingParams(temperature=0.7, top_k=5, top_p=0.9), 1)
    special = Sample(SPECIAL, 4, HISTORY, keep_logits=True)
    scored = Score(TOKENS[1:19], 2)
    first = work(TOKENS, tables[0], 0, 19, cuts=[Cut(16, images[0])])
    again = work(TOKENS, tables[0], 16, 20, FromImage(images[0]), slot=2, write_from=20)
    return [
        (first, work(TOKENS, tables[1], 0, 7, slot=1)),
        (work(TOKENS, tables[0], 19, 20), work(TOKENS, tables[1], 7, 8, slot=1, sample=warm)),
        (work(TOKENS, tables[0], 20, 21, cuts=[Cut(21, images[1])]), work(TOKENS, tables[1], 8, 9, slot=1, sample=special), again),
        (work(TOKENS, tables[0], 21, 22), work(TOKENS, tables[1], 9, 10, slot=1, sample=special)),
        (Work("scored", 3, 0, 0, TOKENS[:19], tables[3], 0, first.state, (), warm, scored),),
    ]  # fmt: skip


@pytest.mark.parametrize(("graphs", "prompts"), [((), ()), ((1, 4), (64,))], ids=["as it comes", "recorded"])
@pytest.mark.long
def test_no_launch_waits_for_the_device(tmp_path: Path, graphs: tuple[int, ...], prompts: tuple[int, ...]) -> None:
    rig = Rig(
        dummy_decoder(written(tmp_path, **({} if prompts else EXPERTS)), torch.float32, make=CudaBackend), pages=60
    )
    rig.recorder.backend.prepare(rig.runner._memory, rig.recorder.decoder.compute, Prepared(graphs, prompts, 4))  # type: ignore[arg-type]
    backend: Any = rig.recorder.backend
    kernels = backend.kernels
    backend.kernels = replace(
        kernels, attend=by_a_library(kernels.attend), attend_pages=by_a_library(kernels.attend_pages)
    )
    images, tables = [rig.image(), rig.image()], [rig.table(40) for _ in range(4)]
    for works in steps(rig, images, tables):
        with nothing_waits():
            launched = rig.runner.launch(Step(works))
        assert all(token for token in launched.result().sampled)
