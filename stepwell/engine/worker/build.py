"""The half of an engine that owns tensors: arenas, live states, model, copies. It does what steps and moves say, and decides nothing.

The other half, control, is in `stepwell.engine.build`. One worker serves one device.
"""

from __future__ import annotations

import logging
import random
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stepwell.base.clock import WallClock
from stepwell.base.errors import ConfigError, StoreError
from stepwell.base.geometry import Geometry
from stepwell.base.units import ceil_div
from stepwell.cache.config import Costs
from stepwell.cache.moves import Tier
from stepwell.engine.compute.sampler import Masks, Sampler
from stepwell.engine.compute.torch_runner import TorchRunner
from stepwell.engine.config import EngineConfig
from stepwell.engine.disk_tier import DiskTier, disk_mover, gate_of
from stepwell.engine.external_tier import ExternalTier
from stepwell.engine.phases import Phases
from stepwell.engine.wire.link import Endpoint
from stepwell.engine.worker.ahead import compile_ahead
from stepwell.engine.worker.compiles import Compiles
from stepwell.engine.worker.kv_scales import Naming, calibrated, calibration_tokens, settled
from stepwell.engine.worker.measure import measure_copies, measure_prefill
from stepwell.engine.worker.progress import reading_progress
from stepwell.engine.worker.sizes import Sizes, sizes_of
from stepwell.engine.worker.warm import prepare, rehearsals, wanted, warm_up
from stepwell.model.backend import Backend
from stepwell.model.backends import backend_for, has_kernels
from stepwell.model.config import HybridConfig
from stepwell.model.decoder import HybridDecoder
from stepwell.model.kv_scales import KvScales
from stepwell.model.loading import DTYPES, dummy_decoder, load_decoder
from stepwell.ops.ranks import ALONE, Ranks
from stepwell.sched.step import Mover
from stepwell.store.arena import Arena, PlainArena
from stepwell.store.copier import Copier, HostCopier
from stepwell.store.cudart import Cudart, OnDevice, libraries
from stepwell.store.device import DeviceArena, LiveStates, Precision
from stepwell.store.disk.store import DiskStore
from stepwell.store.external.mover import ExternalMover
from stepwell.store.external.route import ExternalRoute
from stepwell.store.host import HostArena
from stepwell.store.mover import CopyMover
from stepwell.store.numa import node_of, prefer_node
from stepwell.store.pinned import Pinning, mapped
from stepwell.store.route import RoutingMover
from stepwell.store.streams import Behind, StreamCopier, cuda_lanes

log = logging.getLogger("stepwell.engine")

_TOUCHED = 1 << 30
"""Bytes of a CPU's --device-memory, at most, that are taken at the start: the first prompts would pay for them, in some places milliseconds
a MiB. What is only a share of the free memory is taken as it is used."""
_SAMPLE = 0.01
"""Share of pages in host whose checksums are kept on CUDA: of all of them would be slower than the link."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What is to be built, before anything is: the model's shape, where it lives, in what precision, and how many tokens it drafts.

    model   of several ranks, what one of them holds       ranks   all of them, as this process sees them
    """

    directory: Path
    model: HybridConfig
    device: torch.device
    dtype: torch.dtype
    precision: Precision
    geometry: Geometry
    drafts: int
    ranks: Ranks

    @classmethod
    def of(cls, config: EngineConfig, ranks: Ranks = ALONE) -> Frame:
        """Raises ConfigError, naming the flag. `ranks` are those of a process that is one of them; control has none."""
        device, directory = device_of(config, ranks.number), Path(config.model)
        model = HybridConfig.from_file(directory)
        dtype = DTYPES[model.dtype if config.dtype == "auto" else config.dtype]
        precision = Precision.of(dtype, config.kv_cache_dtype, config.state_dtype)
        drafts = config.num_speculative_tokens
        if drafts:
            model = replace(model, shape=model.shape.drafting())
        model = model.shard(config.tensor_parallel_size)
        geometry = model.shape.geometry(config.block_size, config.rung_grid, precision.widths)
        if (config.disk_cache or config.kv_offload != "native") and not geometry.image_bytes:
            # a record on disk has bytes: where no layer is recurrent, a page that means nothing stands for a rung
            geometry = replace(geometry, image_bytes=1)
        return cls(directory, model, device, dtype, precision, geometry, drafts, ranks)


@dataclass(frozen=True, slots=True)
class Counts:
    """Kernels compiled; bytes of device memory that were taken before the first pass, on a GPU.

    planned   weights, pages and live states; what passes need beside them comes on top
    """

    compiles: Compiles
    device: torch.device
    planned: int

    def compiled(self) -> dict[str, int]:
        """Kernels by when: `start` or `serving`."""
        return {"start": self.compiles.at_start, "serving": self.compiles.serving}

    def device_bytes(self) -> dict[str, int]:
        """Device memory that tensors take: as `planned`, and at the `peak`. Empty without a GPU."""
        if self.device.type != "cuda":
            return {}
        return {"planned": self.planned, "peak": torch.cuda.max_memory_allocated(self.device)}

    def ranks(self) -> tuple[dict[str, float], ...]:
        """There is one."""
        return ()


@dataclass(frozen=True, slots=True)
class Worker:
    """What has been built: who computes and copies, at this end of the wire; how much fits, how fast it is, what computes and copies.

    pinning  how much of host can be used by now; None: all
    arena    the device's pages: control has no use for them, evaluations tamper with them
    counts   what it counts as it works
    external  who asks an external store; it is asked by the loop as well
    """

    endpoint: Endpoint
    sizes: Sizes
    costs: Costs
    kernels: tuple[str, ...]
    copies: str
    pinning: Pinning | None
    arena: DeviceArena
    counts: Counts
    external: ExternalMover | None = None


def build_worker(
    config: EngineConfig, frame: Frame, tier: DiskTier[DiskStore] | None, masks: Masks, owned: ExitStack, phases: Phases,
    naming: Naming | None = None, external: ExternalTier | None = None,
) -> Worker:  # fmt: skip
    """Load the model, take the memory, start the copies, measure. What has to be closed is, with `owned`. `naming`: KV is stored with
    these scales, or with those that are calibrated here. Raises ConfigError."""
    model, device, compiles = frame.model, frame.device, Compiles()
    if device.type == "cuda":
        compiles.listen()
    with phases("reading weights" if config.dummy_seed is None else "making weights"):
        decoder = _decoder(config, frame, phases)
    with phases("taking device memory"):
        # what one step leaves pending, and what the next one looks at
        depth = 2 * (1 + frame.drafts) if frame.drafts else 0
        rings = model.shape.ring_bytes(depth, frame.precision.widths)
        sizes = sizes_of(config, model.max_positions, frame.geometry, device, rings, frame.ranks)
        arena = DeviceArena(sizes.pages, model.shape, sizes.geometry, frame.precision, device)
        arena.touch(min(config.device_memory or 0, _TOUCHED))
        live = LiveStates(config.max_num_seqs, model.shape, sizes.geometry, frame.precision, device, depth)
    scales = None if naming is None else _scales(config, frame, naming, decoder, live, phases)
    runner = TorchRunner(decoder, arena, live, Sampler(model.eos_token_ids, masks), frame.drafts, scales=scales)
    planned = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    asked = wanted(config, ceil_div(sizes.max_model_len, sizes.geometry.block), device.type == "cuda")
    if has_kernels(model, frame.dtype, device):
        with phases("compiling"), frame.ranks.apart():
            compile_ahead(device, rehearsals(runner, asked, sizes, config), lambda: compiles.at_start)
    with phases("capturing"):
        notes = prepare(runner, asked, sizes)
    if device.type == "cuda":
        with phases("warming up"):
            warm_up(runner, sizes, config)
    costs = Costs()
    if not config.deterministic:
        with phases("measuring prompts"):  # before host memory is being locked, which holds up launches
            costs = measure_prefill(costs, runner, sizes, config.max_num_batched_tokens, frame.ranks.largest)
    with phases("taking host memory"):
        host = _host(config, sizes, device)
        pinning = _pinning(config, host, device, owned)
    copier = _copier(arena, host, live, lambda: runner.drafted)
    copies = owned.enter_context(CopyMover(copier))
    with phases("measuring copies"):
        measured = measure_copies(costs, copies, sizes, pinning.ready if pinning else sizes.slots)
    costs = costs if config.deterministic else measured
    mover: Mover = copies
    if tier is not None:
        mover = owned.enter_context(RoutingMover(copies, disk_mover(tier.store, arena, host, live)))
    beyond = (
        None if external is None else owned.enter_context(external.mover(gate_of(arena, host, live), sizes.geometry))
    )
    mover = mover if beyond is None else ExternalRoute(mover, beyond)
    endpoint = Endpoint(runner, _with_faults(mover, config, arena, host))
    notes += () if scales is None else (_told(scales),)
    names = decoder.backend.names + decoder.notes + notes + ((frame.ranks.name,) if frame.ranks.name else ())
    compiles.serve()
    counts = Counts(compiles, device, planned)
    return Worker(endpoint, sizes, costs, names, copier.name, pinning, arena, counts, beyond)


def device_of(config: EngineConfig, rank: int) -> torch.device:
    """Where this rank computes. Raises ConfigError."""
    name, ranks = config.device, config.tensor_parallel_size
    if name == "cpu" or not torch.cuda.is_available():
        if name == "cuda":
            raise ConfigError("--device cuda: no CUDA device is visible; use --device cpu")
        return torch.device("cpu")
    if ranks == 1:
        return torch.device("cuda")
    if ranks > torch.cuda.device_count():
        raise ConfigError(f"--tensor-parallel-size {ranks}: {torch.cuda.device_count()} CUDA devices are visible")
    return torch.device("cuda", rank)


def _decoder(config: EngineConfig, frame: Frame, phases: Phases) -> HybridDecoder:
    """The model with its weights, read from files or made up."""

    def make(config: HybridConfig, dtype: torch.dtype, device: torch.device, ranks: Ranks) -> Backend:
        with phases("importing kernels"):
            return backend_for(config, dtype, device, ranks)

    place, drafts = (frame.directory, frame.dtype, frame.device), frame.drafts > 0
    if config.dummy_seed is not None:
        return dummy_decoder(*place, seed=config.dummy_seed, make=make, drafts=drafts, ranks=frame.ranks)
    with reading_progress(WallClock()) as progress:
        return load_decoder(*place, progress=progress, make=make, drafts=drafts, ranks=frame.ranks)


def _scales(
    config: EngineConfig, frame: Frame, naming: Naming, decoder: HybridDecoder, live: LiveStates, phases: Phases
) -> KvScales:  # fmt: skip
    """Of keys and values: as they were kept, or calibrated now, on pages of their own."""
    with phases("calibrating KV"):
        most = config.max_num_batched_tokens

        def calibrate() -> KvScales:
            tokens = calibration_tokens(config, frame.model.shape.vocab)
            return calibrated(decoder, tokens, live, frame.geometry, frame.precision, most)

        return settled(naming, frame.ranks, calibrate).to(frame.device)


def _told(scales: KvScales) -> str:
    least, most = scales.exponents
    scaled = f"keys and values: e4m3, scaled head by head by 2^{least} to 2^{most}"
    return f"{scaled}; every kernel reads them, since queries and results are scaled instead"


def _host(config: EngineConfig, sizes: Sizes, device: torch.device) -> HostArena | None:
    if not config.host_memory:
        return None
    cuda = device.type == "cuda"
    page = sizes.geometry.page_bytes
    verify = config.verify_host if config.verify_host is not None else _SAMPLE if cuda else 1.0
    return HostArena.within(config.host_memory, page, allocate=mapped if cuda else None, verify=verify)


def _pinning(config: EngineConfig, host: HostArena | None, device: torch.device, owned: ExitStack) -> Pinning | None:
    """What page-locks host memory while the engine serves, on the memory node beside the GPU. `--deterministic` waits for its end: how
    much of host there is would otherwise depend on the time."""
    if host is None or device.type != "cuda":
        return None
    cudart = Cudart.load(libraries(torch.version.cuda))
    index = torch.cuda.current_device()
    node = node_of(cudart.pci_id(index))
    if node is not None and (why := prefer_node(host.rows.ctypes.data, host.rows.nbytes, node)):
        log.warning("host memory lies wherever the system likes, not beside the GPU on node %d: %s", node, why)
    try:
        pinning = owned.enter_context(Pinning(host.rows, OnDevice(cudart, index)))
    except StoreError as error:
        raise ConfigError(
            f"--host-memory: not even the first of it can be page-locked ({error}): ask for less, or for 0"
        ) from error
    if config.deterministic:
        pinning.wait()
    return pinning


def _copier(arena: DeviceArena, host: HostArena | None, live: LiveStates, behind: Behind) -> Copier:
    """`behind`: what is still written to the device behind a step's result."""
    cuda = arena.device.type == "cuda"
    if cuda and host is not None:
        up, down = cuda_lanes(arena.device, behind)
        return StreamCopier(arena.rows, host, live, up=up, down=down)
    rows = arena.rows if not cuda else torch.empty(0, arena.page_bytes, dtype=torch.uint8)  # no tier below: no move
    arenas: dict[Tier, Arena] = {Tier.DEVICE: PlainArena(rows.numpy())}
    if host is not None:
        arenas[Tier.HOST] = host
    return HostCopier(arenas, live)


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
