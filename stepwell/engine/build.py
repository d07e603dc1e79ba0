"""From flags to a running engine: sizes, arenas, model, copies, loop. The one place where all of them meet."""

from __future__ import annotations

import contextlib
import random
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stepwell.base.clock import WallClock
from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.base.units import format_size
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.moves import Tier
from stepwell.engine.config import EngineConfig, EngineFacts, Report
from stepwell.engine.disk_tier import CHUNK, DiskTier, disk_mover, identity, open_disk, with_disk
from stepwell.engine.doubts import doubts, longest_context
from stepwell.engine.grammars import Grammars, GuideError
from stepwell.engine.guide import Guides
from stepwell.engine.owned import OwnedLoop
from stepwell.engine.progress import reading_progress
from stepwell.engine.sampler import Sampler
from stepwell.engine.torch_runner import TorchRunner
from stepwell.model.config import HybridConfig
from stepwell.model.decoder import HybridDecoder
from stepwell.model.loading import DTYPES, dummy_decoder, load_decoder
from stepwell.sched.audit import Auditor
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Fresh, Mover, Runner, Sample, Step, Work
from stepwell.store.arena import Arena, PlainArena
from stepwell.store.copier import Copier, HostCopier
from stepwell.store.device import DeviceArena, LiveStates, Precision
from stepwell.store.host import HostArena, available_memory
from stepwell.store.mover import CopyMover
from stepwell.store.route import RoutingMover
from stepwell.store.streams import StreamCopier

_PROBE_TOKENS = 512
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far apart two right answers may be, as a share of the largest logit: a cold run sums in other batches and cuts."""
_CPU_SHARE = 0.25  # of the free memory, where nothing is said: the weights and the rest of the machine live there too


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the budgets hold."""

    geometry: Geometry
    pages: int
    slots: int
    max_model_len: int


def build_engine(config: EngineConfig, report: Report) -> OwnedLoop:
    """The engine that `config` describes. Raises ConfigError, naming the flag, where it cannot work."""
    owned = ExitStack()
    try:
        return _build(config, report, owned)
    except BaseException:
        owned.close()
        raise


def _build(config: EngineConfig, report: Report, owned: ExitStack) -> OwnedLoop:
    device = _device(config.device)
    model = HybridConfig.from_file(Path(config.model))
    dtype = DTYPES[model.dtype if config.dtype == "auto" else config.dtype]
    precision = Precision(dtype, dtype)
    geometry = model.shape.geometry(config.block_size, config.rung_grid, precision.widths)
    place = Path(config.model), model.shape, geometry, precision, device.type
    # before the weights: that a folder is in use, say, is told at once
    tier = open_disk(config, geometry, identity(*place, config.dummy_seed) if config.disk_cache else {}, owned)
    decoder = _decoder(config, dtype, device)
    sizes = _sizes(config, model, geometry, device)
    arena = DeviceArena(sizes.pages, model.shape, sizes.geometry, precision, device)
    live = LiveStates(config.max_num_seqs, model.shape, sizes.geometry, precision, device)
    keep = 2 * config.max_num_seqs
    grammars = _grammars(Grammars(config.model, model.shape.vocab, model.eos_token_ids, keep), owned)
    guides = Guides(grammars, model.shape.vocab, keep)
    runner = TorchRunner(decoder, arena, live, Sampler(model.eos_token_ids, guides))
    host = _host(config, sizes, device)
    mover = _with_faults(_mover(arena, host, live, tier, owned), config, arena, host)
    costs = with_disk(Costs(prefill_tokens_per_s=_prefill_speed(runner, sizes, config)), tier)
    auditor = Auditor(config.verify_resume, _TOLERANCE[dtype], random.Random(config.seed))
    archive, store = (tier.archive, tier.store) if tier is not None else (None, None)
    loop = OwnedLoop(
        _cache_rules(config, sizes, tier.store.slots if tier is not None else 0),
        _sched_rules(config, sizes, model, device),
        runner,
        mover,
        WallClock(),
        costs,
        archive,
        auditor=auditor,
        owned=owned,
        disk=store,
        grammars=grammars,
    )
    plan = _memory_plan(config, sizes, costs, device) + (tier.rows(config) if tier is not None else ())
    causes = doubts(config, sizes.geometry, sizes.pages, sizes.slots, sizes.max_model_len)
    if grammars.fault is not None:
        causes += (f"grammars are off (response_format, structured outputs, forced calls): {grammars.fault}",)
    report(EngineFacts(config.name, loop.longest, model.shape.vocab, plan, causes, model.ends))
    return loop


def _decoder(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> HybridDecoder:
    """The model with its weights, read from files or made up."""
    directory = Path(config.model)
    if config.dummy_seed is not None:
        return dummy_decoder(directory, dtype, device, seed=config.dummy_seed)
    with reading_progress(WallClock()) as progress:
        return load_decoder(directory, dtype, device, progress=progress)


def _cache_rules(config: EngineConfig, sizes: Sizes, disk_slots: int) -> CacheConfig:
    return CacheConfig(
        sizes.geometry,
        sizes.pages,
        sizes.slots,
        disk_slots,
        CHUNK,
        interval=config.state_checkpoint_interval_tokens,
        min_load_tokens=config.min_load_tokens,
        write_idle=config.disk_write_when == "idle",
        policy=config.cache_policy,
        keep_share=config.keep_share,
    )


def _sched_rules(config: EngineConfig, sizes: Sizes, model: HybridConfig, device: torch.device) -> SchedConfig:
    ahead = device.type == "cuda" if config.async_scheduling == "auto" else config.async_scheduling == "on"
    return SchedConfig(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        sizes.max_model_len,
        config.decode_rung_tokens,
        model.eos_token_ids,
        model.shape.vocab,
        config.enable_prefix_caching,
        config.load_timeout,
        think_prefetch=config.think_prefetch,
        coalesce=config.coalesce,
        priority_ageing=config.priority_ageing,
        fair_salts=config.fair_salts,
        async_scheduling=ahead,
    )


def _grammars(grammars: Grammars, owned: ExitStack) -> Grammars:
    """With the vocabulary read, which would hold up every request later. One that cannot be read is told as a doubt."""
    owned.callback(grammars.close)
    with contextlib.suppress(GuideError):
        grammars.warm()
    return grammars


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: no CUDA device is visible; use --device cpu")
    return torch.device(name)


def _sizes(config: EngineConfig, model: HybridConfig, geometry: Geometry, device: torch.device) -> Sizes:
    pages = _device_budget(config, device, config.max_num_seqs * geometry.image_bytes) // geometry.page_bytes
    longest = longest_context(config, geometry, pages, model.max_positions)
    return Sizes(geometry, pages, config.host_memory // geometry.page_bytes, longest)


def _device_budget(config: EngineConfig, device: torch.device, live: int) -> int:
    """Bytes for the arena: what was asked for, or a share of what is free beside the weights and `live` bytes of states."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        budget = config.device_memory or int(total * config.gpu_memory_utilization) - (total - free) - live
        taken = live
    else:
        free = available_memory()
        budget = config.device_memory or int(free * _CPU_SHARE)
        taken = live + config.host_memory  # the same memory; neither arena is touched before it is used
    if budget + taken > free:
        raise ConfigError(
            f"--device-memory {format_size(budget)} and {format_size(taken)} beside it (live states of --max-num-seqs "
            f"{config.max_num_seqs}, --host-memory where that is the same memory) are more than the {format_size(free)} "
            "that are free: ask for less"
        )
    return budget


def _host(config: EngineConfig, sizes: Sizes, device: torch.device) -> HostArena | None:
    if not config.host_memory:
        return None
    cuda = device.type == "cuda"
    return HostArena.within(config.host_memory, sizes.geometry.page_bytes, pin=cuda, verify=not cuda)


def _copier(arena: DeviceArena, host: HostArena | None, live: LiveStates) -> Copier:
    cuda = arena.device.type == "cuda"
    if cuda and host is not None:
        return StreamCopier(arena.rows, host, live)
    rows = arena.rows if not cuda else torch.empty(0, arena.page_bytes, dtype=torch.uint8)  # no tier below: no move
    arenas: dict[Tier, Arena] = {Tier.DEVICE: PlainArena(rows.numpy())}
    if host is not None:
        arenas[Tier.HOST] = host
    return HostCopier(arenas, live)


def _mover(
    arena: DeviceArena, host: HostArena | None, live: LiveStates, tier: DiskTier | None, owned: ExitStack
) -> Mover:
    """What carries out moves, closed with `owned` before the stores are."""
    copies = owned.enter_context(CopyMover(_copier(arena, host, live)))
    if tier is None:
        return copies
    return owned.enter_context(RoutingMover(copies, disk_mover(tier, arena, host, live)))


def _with_faults(mover: Mover, config: EngineConfig, arena: DeviceArena, host: HostArena | None) -> Mover:
    if not config.faults:
        return mover
    from stepwell.engine.faults import faulty_mover, flipper
    from stepwell.testing.faultspec import parse_faults

    faults = parse_faults(config.faults)
    if faults.of_disk and config.disk_cache is None:
        raise ConfigError("--fault disk:… and --fault crash:… are faults of a disk tier: give --disk-cache as well")
    flips = {Tier.DEVICE: flipper(arena.rows)}
    if host is not None:
        flips[Tier.HOST] = flipper(host.rows)
    return faulty_mover(mover, faults, flips, arena.page_bytes, random.Random(config.seed))


def _prefill_speed(runner: Runner, sizes: Sizes, config: EngineConfig) -> float:
    """Prompt tokens a second, measured on pages that nobody uses yet: what a load must beat."""
    count = min(_PROBE_TOKENS, config.max_num_batched_tokens, sizes.pages * sizes.geometry.block, sizes.max_model_len)
    pages = np.arange(sizes.geometry.pages_for(count), dtype=np.int32)
    tokens = np.arange(count, dtype=np.int32) % 64
    probe = Work("probe", 0, 0, 0, tokens, pages, 0, Fresh(), (), Sample(SamplingParams(), 0))
    clock, seconds = WallClock(), []
    for _ in range(3):  # the first pass also warms up; a busy machine is better judged by its best moment
        began = clock.now()
        runner.launch(Step((probe,))).result()
        seconds.append(clock.now() - began)
    return count / max(min(seconds), 1e-6)


def _memory_plan(
    config: EngineConfig, sizes: Sizes, costs: Costs, device: torch.device
) -> tuple[tuple[str, str, str], ...]:
    """Rows (name, value, note) for the startup table."""
    geometry = sizes.geometry
    image = f"{geometry.image_pages} pages each, {format_size(geometry.image_bytes)}"
    arena = f"{format_size(sizes.pages * geometry.page_bytes)} on {device}, {geometry.block} tokens a page"
    host = f"{format_size(sizes.slots * geometry.page_bytes)}, one page each" if sizes.slots else "no host tier"
    return (
        ("pages", f"{sizes.pages:,}", arena),
        ("page", format_size(geometry.page_bytes), "KV of one block over all attention layers"),
        ("tokens", f"{sizes.pages * geometry.block:,}", "of KV, if no page held a rung's image"),
        ("images", f"{sizes.pages // max(1, geometry.image_pages):,}", f"would fit; {image}"),
        ("host slots", f"{sizes.slots:,}", host),
        ("prefill", f"{costs.prefill_tokens_per_s:,.0f} tokens/s", "measured now; what a load must beat"),
    )
