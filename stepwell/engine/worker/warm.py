"""What a worker records and computes before the first request, so that no kernel is compiled while one waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from stepwell.base.errors import ConfigError
from stepwell.engine.compute.torch_runner import TorchRunner
from stepwell.engine.config import EngineConfig
from stepwell.engine.worker.sizes import Sizes
from stepwell.model.backend import Prepared
from stepwell.model.backends import sizes_up_to
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Carry, Cut, Fresh, FromImage, Runner, Sample, Score, StateStart, Step, Work

log = logging.getLogger(__name__)

_PROMPTS = (64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 2048, 2304, 2560, 3072, 3584, 4096)
"""Tokens of prompts with a recorded pass each. Beyond them the device computes for longer than the host takes to launch its kernels.
Rows left over are computed too: a turn of an agent often has a few tokens more than a round number."""
_WINDOW = 1024
"""Tokens of the one size under --deterministic."""
_TRIED = 100
_ALIKE = 0.5
"""Cosine of logits. Rounding leaves 0.9 and more even where it turns choices of experts; what has read the wrong memory, nothing."""
_TOGETHER = ((2, 3, 5), (15, 16, 17), (40, 50, 70), (130, 150, 171), (500, 512, 555))
"""Tokens of prompts that are computed together: few and many rows, odd numbers and multiples of 16."""


def wanted(config: EngineConfig, width: int, captures: bool = True) -> Prepared:
    """Passes to be recorded, with block tables of up to `width` pages; `captures`: the device has graphs."""
    if config.deterministic:
        return Prepared(
            (config.max_num_seqs,), (_WINDOW,), width, fixed=True, graphs=captures and not config.enforce_eager
        )
    if config.enforce_eager:
        return Prepared((), (), width)
    rows = sizes_up_to(config.max_num_seqs)
    if config.cudagraph_capture_sizes is not None:
        rows = tuple(sorted({min(size, config.max_num_seqs) for size in config.cudagraph_capture_sizes}))
    most = -(-config.max_num_batched_tokens // 64) * 64
    return Prepared(rows, tuple(size for size in _PROMPTS if size <= most), width, graphs=captures)


def prepare(runner: TorchRunner, asked: Prepared, sizes: Sizes) -> tuple[str, ...]:
    """Record passes, and see that those of prompts give what prompts give as they come. Returns what people should know of it.

    Where they cannot be captured or do not agree, prompts are computed as they come. Raises ConfigError where the answers' being the same
    hangs on them.
    """
    try:
        runner.prepare(asked)
        tries = asked.prompts and asked.graphs and asked.rows[-1] > 1
        fault = agreement(runner, sizes, asked.rows[-1]) if tries else ""
    except RuntimeError as error:  # what capturing raises, whatever the reason
        fault = str(error).partition("\n")[0]
    if not fault:
        return ()
    if asked.fixed:
        raise ConfigError(f"--deterministic cannot be kept here: recorded passes of prompts fail ({fault})")
    log.error("prompts are computed as they come, which is slower: recorded passes of them fail (%s)", fault)
    runner.prepare(replace(asked, prompts=()))
    return ("prompts: not in graphs, see the log",)


def agreement(runner: Runner, sizes: Sizes, slots: int) -> str:
    """Compute two prompts beside a decode, or one where that is all that the slots hold, and once more with the last prompt scored, which
    no recorded pass does. Empty if the logits of both agree, else how far they are apart."""
    block = sizes.geometry.block
    prompts = list(_tried(sizes, 1 if slots < 3 or sizes.pages < 4 else 2))
    first, own = np.arange(min(5, block - 1), dtype=np.int32), np.zeros(1, np.int32)
    sample, found = Sample(SamplingParams(), 0, keep_logits=True), []
    for score in (None, Score(first[:1], 0)):
        runner.launch(Step((Work("beside", 1, 0, 0, first, own, 0, Fresh(), (), sample),))).result()
        beside = Work("beside", 1, 0, len(first), first[:1], own, 0, Carry(), (), replace(sample, index=1))
        step = Step((beside, *prompts[:-1], replace(prompts[-1], score=score)))
        found.append([row.astype(np.float64) for _, row in runner.launch(step).result().logits])
    cosines = [
        float(one @ other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-30)
        for one, other in zip(*found, strict=True)
    ]
    alike = float(np.min(cosines))  # NaN if one is
    return "" if alike >= _ALIKE else f"cosine {alike:.3f} to the logits of the same step as it comes"


def _tried(sizes: Sizes, count: int) -> Iterator[Work]:
    """One or two prompts for one pass, on pages behind the first, in the slots 0 and 2."""
    block, page = sizes.geometry.block, 1
    room = min(_TRIED, sizes.max_model_len, (sizes.pages - count) * block)
    short = room // 4 if count > 1 else 0
    sample = Sample(SamplingParams(), 0, keep_logits=True)
    for at, own in enumerate((room - short, short)[:count]):
        pages = np.arange(page, page + sizes.geometry.pages_for(own), dtype=np.int32)
        page += len(pages)
        tokens = np.arange(own, dtype=np.int32) * 7 % 64
        yield Work(f"tried {at}", 2 * at, 0, 0, tokens, pages, 0, Fresh(), (), sample)


def warm_up(runner: Runner, sizes: Sizes, config: EngineConfig) -> None:
    """Compute a step of each kind, on pages and slots that nobody uses yet. Every size of a kind has the same kernels."""
    steps = list(_steps(sizes, config))
    for number, step in enumerate(steps, 1):
        log.info("warming up: step %d of %d, %d sequences, %d tokens", number, len(steps), len(step), step.tokens)
        runner.launch(step).result()


def rehearsals(runner: TorchRunner, asked: Prepared, sizes: Sizes, config: EngineConfig) -> list[Callable[[], None]]:
    """Calls that launch the kernels of `prepare` and `warm_up`, for `stepwell.engine.worker.ahead`: first a few of them, then all.

    They capture no graph, read no token and ask for no log-probabilities.
    """
    steps = [step for step in _steps(sizes, config) if all(_is_plain(work) for work in step.works)]

    def a_little() -> None:
        runner.prepare(replace(asked, rows=asked.rows[-1:], prompts=(), graphs=False))
        runner.launch(steps[0])

    def all_of_it() -> None:
        runner.prepare(replace(asked, graphs=False))
        for step in steps:
            runner.launch(step)

    return [a_little, all_of_it]


def _is_plain(work: Work) -> bool:
    return work.sample is not None and work.sample.params.logprobs is None


def _steps(sizes: Sizes, config: EngineConfig) -> Iterator[Step]:
    slots, room = (
        config.max_num_seqs,
        min(config.max_num_batched_tokens, sizes.max_model_len, sizes.pages * sizes.geometry.block),
    )
    block, image = sizes.geometry.block, np.arange(min(sizes.pages, sizes.geometry.image_pages), dtype=np.int32)

    def work(
        slot: int, start: int, count: int, state: StateStart, params: SamplingParams, cuts: tuple[Cut, ...] = ()
    ) -> Work:
        pages = np.arange(-(-(start + count) // block), dtype=np.int32)
        tokens = np.arange(count, dtype=np.int32) % 64
        return Work(f"warm {slot}", slot, 0, start, tokens, pages, 0, state, cuts, Sample(params, 1))

    greedy = SamplingParams()
    drawn = SamplingParams(temperature=0.9, top_k=40, top_p=0.9, min_p=0.01, seed=1)
    looked_at = SamplingParams(temperature=0.9, top_k=40, top_p=0.9, logprobs=1)
    for params in (greedy, drawn, looked_at, SamplingParams(logprobs=1)):
        for rows in {1, min(3, slots), slots}:
            yield Step(tuple(work(slot, 1, 1, Carry(), params) for slot in range(rows)))
    for count in {min(room, size) for size in (2, 100, room)}:
        cuts = (Cut(16, image),) if count > 16 and len(image) == sizes.geometry.image_pages else ()
        yield Step((work(0, 0, count, Fresh(), greedy, cuts),))
        if cuts:
            yield Step((work(0, 16, min(64, room - 16), FromImage(image), drawn),))
    if room >= 16 and len(image) == sizes.geometry.image_pages:
        yield Step((work(0, 0, 16, Fresh(), greedy, (Cut(16, image),)),))  # a rung of what is live behind the pass
    if drafts := config.num_speculative_tokens:
        pages, cuts = np.arange(sizes.geometry.pages_for(2 + drafts), dtype=np.int32), (Cut(2, image),)
        for params in (greedy, drawn, looked_at):
            drafted = work(0, 1, 1, Carry(), params, cuts if len(image) == sizes.geometry.image_pages else ())
            yield Step((replace(drafted, pages=pages, drafts=drafts),))
    for counts in _TOGETHER:
        fitting = [count for count in counts if sum(counts) <= room][: max(0, slots - 1)]
        if fitting:
            prompts = tuple(work(slot, 0, count, Fresh(), greedy) for slot, count in enumerate(fitting, 1))
            yield Step(prompts)
            yield Step((work(0, 1, 1, Carry(), drawn), *prompts))
