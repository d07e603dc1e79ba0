"""From flags to a running engine: the half that decides (directory, loop, what it reports) around the one that owns tensors."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch

from stepwell.base.clock import WallClock
from stepwell.base.errors import ConfigError
from stepwell.base.units import ceil_to, format_size
from stepwell.cache.config import CacheConfig, Costs
from stepwell.engine.compute.sampler import Masks
from stepwell.engine.config import EngineConfig, EngineFacts, Report
from stepwell.engine.disk_tier import CHUNK, DiskTier, identity, of_all, open_disk, with_disk
from stepwell.engine.doubts import doubts
from stepwell.engine.events.publisher import Publisher
from stepwell.engine.external_tier import ExternalRules, ExternalTier
from stepwell.engine.grammar.grammars import Grammars
from stepwell.engine.grammar.guide import Guides
from stepwell.engine.grammar.vocabulary import GuideError
from stepwell.engine.owned import Growing, OwnedLoop
from stepwell.engine.phases import Phases
from stepwell.engine.ranks.start import start_ranks, take_folder
from stepwell.engine.worker.build import Frame, build_worker
from stepwell.engine.worker.kv_scales import Naming
from stepwell.engine.worker.sizes import Sizes
from stepwell.engine.workers import Workers
from stepwell.sched.audit import Auditor
from stepwell.sched.config import SchedConfig
from stepwell.sched.drafts import Always, Measured
from stepwell.store.device import DeviceArena, Precision

Seam: TypeAlias = Callable[[DeviceArena], None]
Made: TypeAlias = tuple[Workers, DiskTier[Any] | None]
MakeWorkers: TypeAlias = Callable[[Masks], Made]

_CONVERSATION = 50_000
_PLAIN_INTERVAL = 256
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far apart two right answers may be, as a share of the largest logit: a cold run sums in other batches and cuts."""


def build_engine(config: EngineConfig, report: Report, seam: Seam | None = None, apart: bool = False) -> OwnedLoop:
    """The engine that `config` describes. `seam` is given the device's pages: for evaluations that tamper with them. `apart`: one rank has
    a process of its own, too: for benchmarks of what that costs.

    Raises ConfigError, naming the flag, where it cannot work.
    """
    owned = ExitStack()
    try:
        return _build(config, report, owned, seam, apart)
    except BaseException:
        owned.close()
        raise


def _build(config: EngineConfig, report: Report, owned: ExitStack, seam: Seam | None, apart: bool) -> OwnedLoop:
    phases = Phases(WallClock(), report)
    frame = Frame.of(config)
    model = frame.model
    # before the weights: that a folder is in use, say, is told at once
    with phases("opening the disk cache"):
        parts = _identity(config, frame)
        external = ExternalRules.of(config, frame.geometry, parts)
        apart = apart or config.tensor_parallel_size > 1
        make_workers = _make_workers(config, frame, parts, external, owned, phases, apart)
    keep = 2 * config.max_num_seqs
    grammars = Grammars(config.model, model.shape.vocab, model.eos_token_ids, keep)
    guides = Guides(grammars, model.shape.vocab, keep, patient=config.deterministic)
    owned.callback(guides.close)
    owned.callback(grammars.close)  # before the guides, which wait for its processes
    with (
        phases("reading the vocabulary"),
        contextlib.suppress(GuideError),
    ):  # one that cannot be read is told as a doubt
        grammars.warm()
    worker, tier = make_workers(guides)
    _expose_pages(worker, seam)
    sizes, costs = worker.sizes, worker.costs if config.deterministic else with_disk(worker.costs, tier)
    auditor = Auditor(config.verify_resume, _tolerance(frame.precision), random.Random(config.seed))
    archive, store = (tier.archive, tier.store) if tier is not None else (None, None)
    loop = OwnedLoop(
        _cache_rules(config, sizes, frame, tier.store.slots if tier is not None else 0, worker.pinning, external),
        _sched_rules(config, sizes, frame),
        worker.runner,
        worker.mover,
        WallClock(),
        costs,
        archive,
        auditor=auditor,
        guidance=guides,
        gain=Always() if config.deterministic else Measured(),
        owned=owned,
        disk=store,
        grammars=grammars,
        pinning=worker.pinning,
        counts=worker.counts,
        rest=worker.rest,
        scores=not (config.deterministic and frame.device.type == "cuda"),
        publisher=_publisher(config, owned),
        external=None if external is None else external.ledger(),
        store=worker.external,
    )
    plan = (
        _memory_plan(sizes, costs, frame.device, worker.copies)
        + (_kernels(worker.kernels),)
        + (tier.rows(config) if tier is not None else ())
        + (external.rows() if external is not None else ())
    )
    causes = doubts(config, sizes.geometry, sizes.pages, sizes.slots, sizes.max_model_len)
    if grammars.fault is not None:
        causes += (f"grammars are off (response_format, structured outputs, forced calls): {grammars.fault}",)
    report(EngineFacts(config.name, loop.longest, model.shape.vocab, plan, causes, model.ends, phases.taken()))
    return loop


def _identity(config: EngineConfig, frame: Frame) -> dict[str, str]:
    """All that bytes kept outside this process depend on, in words; empty where none are."""
    if config.disk_cache is None and config.kv_offload == "native":
        return {}
    place = frame.directory, frame.model.shape, frame.geometry, frame.precision, frame.device.type
    return of_all(identity(*place, config.dummy_seed), config.tensor_parallel_size)


def _make_workers(
    config: EngineConfig,
    frame: Frame,
    parts: dict[str, str],
    rules: ExternalRules | None,
    owned: ExitStack,
    phases: Phases,
    apart: bool,
) -> MakeWorkers:
    """Open the caches outside this process; what is returned builds those who compute and copy: in this process, or `apart`, in one for
    each rank."""
    if apart:
        key = take_folder(config, frame, parts, owned)
        return lambda masks: start_ranks(config, frame, masks, key, owned, phases)
    naming = Naming.of(config, frame.model.shape, parts)
    tier = open_disk(config, frame.geometry, parts | (naming.parts if naming else {}), owned)
    external = None if rules is None else ExternalTier.opened(rules, config, frame.geometry, owned)

    def make(masks: Masks) -> Made:
        worker = build_worker(config, frame, tier, masks, owned, phases, naming, external)
        return Workers.of(worker), tier

    return make


def _publisher(config: EngineConfig, owned: ExitStack) -> Publisher | None:
    if config.kv_events_endpoint is None:
        return None
    made = Publisher(config.kv_events_endpoint, config.kv_events_replay_endpoint, config.kv_events_topic)
    owned.callback(made.close)
    return made


def _expose_pages(worker: Workers, seam: Seam | None) -> None:
    if seam is not None:
        if worker.arena is None:
            raise ConfigError("pages can be tampered with in this process alone: give --tensor-parallel-size 1")
        seam(worker.arena)


def _cache_rules(
    config: EngineConfig,
    sizes: Sizes,
    frame: Frame,
    disk_slots: int,
    pinning: Growing | None,
    external: ExternalRules | None,
) -> CacheConfig:
    return CacheConfig(
        sizes.geometry,
        sizes.pages,
        sizes.slots,
        disk_slots,
        CHUNK,
        interval=_interval(config, frame),
        min_load_tokens=config.min_load_tokens,
        write_idle=config.disk_write_when == "idle",
        tenant_share=config.tenant_share,
        host_ready=None if pinning is None else pinning.ready,
        external_chunk=0 if external is None else external.names.chunk,
        external_drops=config.lmcache_partial_chunk == "drop",
    )


def _interval(config: EngineConfig, frame: Frame) -> int:
    """Tokens between rungs on the way of a prompt: few where no layer is recurrent, since images take next to no memory then."""
    most = config.state_checkpoint_interval_tokens
    return most if frame.model.shape.linear_layers else min(most, ceil_to(_PLAIN_INTERVAL, frame.geometry.rung_grid))


def _sched_rules(config: EngineConfig, sizes: Sizes, frame: Frame) -> SchedConfig:
    model = frame.model
    ahead = frame.device.type == "cuda" if config.async_scheduling == "auto" else config.async_scheduling == "on"
    return SchedConfig(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        sizes.max_model_len,
        _decode_rungs(config),
        model.eos_token_ids,
        model.shape.vocab,
        config.enable_prefix_caching,
        config.load_timeout,
        coalesce=config.coalesce,
        priority_ageing=config.priority_ageing,
        fair_salts=config.fair_salts,
        async_scheduling=ahead,
        max_step_s=config.max_step_ms / 1e3,
        deterministic=config.deterministic,
        drafts=frame.drafts,
    )


def _decode_rungs(config: EngineConfig) -> int:
    """Tokens between an answer's rungs: on the grid of the prompts' where a resume is to compute what a cold run does."""
    every = config.decode_rung_tokens
    return math.lcm(every, config.rung_grid) if config.deterministic else every


def _memory_plan(sizes: Sizes, costs: Costs, device: torch.device, copies: str) -> tuple[tuple[str, str, str], ...]:
    """Rows (name, value, note) for the startup table."""
    geometry = sizes.geometry
    image = f"{geometry.image_pages} pages each, {format_size(geometry.image_bytes)}"
    arena = f"{format_size(sizes.pages * geometry.page_bytes)} on {device}, {geometry.block} tokens a page"
    later = ", page-locked in the background and used as far as it is" if device.type == "cuda" else ""
    host = f"{format_size(sizes.slots * geometry.page_bytes)}, one page each{later}" if sizes.slots else "no host tier"
    return (
        ("pages", f"{sizes.pages:,}", arena),
        ("page", format_size(geometry.page_bytes), "KV of one block over all attention layers"),
        ("tokens", f"{sizes.pages * geometry.block:,}", "of KV, if no page held a rung's image"),
        ("holds", *_conversations(sizes)),
        ("images", f"{sizes.pages // max(1, geometry.image_pages):,}", f"would fit; {image}"),
        ("host slots", f"{sizes.slots:,}", host),
        ("prefill", f"{costs.prefill_tokens_per_s:,.0f} tokens/s", _prefill(costs)),
        (
            "loads",
            f"{format_size(int(costs.bytes_per_s[1]))}/s",
            f"from host, by {copies}" if sizes.slots else "no host tier",
        ),
    )


def _conversations(sizes: Sizes) -> tuple[str, str]:
    """How many conversations of a length that agents have can be kept, with one rung each."""
    each = -(-_CONVERSATION // sizes.geometry.block) + sizes.geometry.image_pages
    device, host = sizes.pages // each, sizes.slots // each
    return f"{device:,} in device, {host:,} in host", f"conversations of {_CONVERSATION:,} tokens, with one rung each"


def _tolerance(precision: Precision) -> float:
    """Of the coarser of the model's type and the one in which its states are kept."""
    return max(_TOLERANCE[precision.model], _TOLERANCE[precision.state])


def _kernels(names: tuple[str, ...]) -> tuple[str, str, str]:
    """The row that names them."""
    return "kernels", names[0], "; ".join(names[1:])


def _prefill(costs: Costs) -> str:
    """Prefill behind a long context, and what a step takes before its first token."""
    seconds = costs.prefill_seconds(100_000, 101_000)
    fixed = f", {1000 * costs.prompt_step_s:,.0f} ms a step on top" if costs.prompt_step_s else ""
    return f"{1000 / seconds:,.0f} behind 100,000{fixed}; what a load must beat"
