"""The process of one rank.

    python -m stepwell.engine.ranks.process      reads one Begin line (JSON) from standard input and serves until told to stop

It ends when standard input closes, so with the engine that has started it. Terminal signals are the front end's business.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import threading
from contextlib import ExitStack
from functools import partial

import msgspec
import torch
import torch.distributed as dist

from stepwell.base.clock import WallClock
from stepwell.base.errors import ConfigError, StepwellError
from stepwell.engine.config import EngineConfig
from stepwell.engine.disk_tier import DiskTier, identity, of_all, open_disk
from stepwell.engine.external_tier import ExternalRules, ExternalTier
from stepwell.engine.logs import set_up
from stepwell.engine.phases import Phases
from stepwell.engine.ranks.channel import Channel
from stepwell.engine.ranks.heartbeat import Heartbeat, Tally
from stepwell.engine.ranks.masks import SentMasks
from stepwell.engine.ranks.service import RankService
from stepwell.engine.ranks.wire import (
    TOLD,
    Begin,
    Building,
    Failed,
    Here,
    Ready,
    State,
    Told,
    encode,
)
from stepwell.engine.worker.build import Frame, Worker, build_worker, device_of
from stepwell.engine.worker.kv_scales import Naming
from stepwell.ops.ranks import ALONE, ProcessRanks
from stepwell.store.disk.store import DiskStore
from stepwell.store.mover import SWITCH_SECONDS

log = logging.getLogger("stepwell.engine")

_SIGN_EVERY = 5.0
"""Seconds between two signs of life while a rank is being built."""
_LAST = 2
"""Seconds that a rank may take to end once its engine has gone."""


def main() -> int:
    """Entry of a rank's process. Returns its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_SECONDS)
    begin = msgspec.json.decode(sys.stdin.buffer.readline(), type=Begin)
    set_up(begin.log_level, begin.log_format)
    threading.Thread(target=_end_with_engine, args=(begin.directory,), daemon=True).start()
    control, built = Channel.of(begin.orders), threading.Event()
    threading.Thread(target=_show_life, args=(control, built), daemon=True).start()

    def tell(message: Told) -> None:
        control.send(TOLD, encode(message))

    with ExitStack() as owned:
        try:
            worker, masks, tier, ranks = _built(begin, tell, owned)
        except Exception as error:
            tell(Failed(_reason(error), isinstance(error, ConfigError)))
            if not isinstance(error, StepwellError):
                log.exception("rank %d could not be built", begin.rank)
            return 1
        gc.collect()
        gc.freeze()  # what has been built stays, and need not be looked through while the others wait for a sum
        tally = Tally(lambda: ranks.begun)
        state = partial(_state, worker, tier)
        tell(_ready(worker, tier, state()))
        built.set()
        heartbeat = Heartbeat(Channel.of(begin.signs), tally, state)
        store = None if tier is None else tier.store
        service = RankService(
            begin.rank, worker.endpoint, masks, store, worker.pinning, tally, control, worker.external
        )
        try:
            service.run()
        except Exception as error:
            # where another rank has gone this one fails with it, and control tells whose fault it was
            log.error("rank %d has failed: %s", begin.rank, _reason(error))
            log.debug("where rank %d has failed", begin.rank, exc_info=True)
            heartbeat.fail(_reason(error))
            return 1
    return 0


def _built(
    begin: Begin, tell: object, owned: ExitStack
) -> tuple[Worker, SentMasks, DiskTier[DiskStore] | None, ProcessRanks]:
    """Meet the other ranks, then build this one."""
    assert callable(tell)
    config = begin.config
    phases = Phases(WallClock(), lambda phase: tell(Building(phase)), logging.DEBUG)  # control logs those of the first
    device = device_of(config, begin.rank)
    count = config.tensor_parallel_size
    if device.type == "cuda":
        device = torch.device("cuda", begin.rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    with phases("meeting the other ranks"):
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{begin.directory}/meeting",
            rank=begin.rank,
            world_size=count,
        )
        ranks = _ranks(config, device)
    frame = Frame.of(config, ranks if count > 1 else ALONE)  # the sum over one rank is what it has
    place = frame.directory, frame.model.shape, frame.geometry, frame.precision, device.type
    with phases("opening the disk cache"):
        kept = config.disk_cache is not None or config.kv_offload != "native"
        parts = identity(*place, config.dummy_seed, count, begin.rank) if kept else {}
        naming = Naming.of(config, frame.model.shape, parts)
        tier = open_disk(config, frame.geometry, parts | (naming.parts if naming else {}), owned)
    rules = ExternalRules.of(config, frame.geometry, of_all(parts, count))
    external = None if rules is None else ExternalTier.opened(rules, config, frame.geometry, owned, begin.rank)
    masks = SentMasks(frame.model.shape.vocab)
    return build_worker(config, frame, tier, masks, owned, phases, naming, external), masks, tier, ranks


def _ranks(config: EngineConfig, device: torch.device) -> ProcessRanks:
    """The quickest way to sum that all ranks have."""
    plain = ProcessRanks(device)
    if device.type != "cuda" or config.disable_custom_all_reduce:
        return plain
    shared: ProcessRanks | None = None
    try:
        from stepwell.ops.symmetric import SymmetricRanks

        shared = SymmetricRanks(device)
    except (ImportError, RuntimeError) as error:
        log.warning("GPUs cannot reach each other's memory, sums take NCCL: %s", str(error).partition("\n")[0])
    fails = plain.largest(float(shared is None))
    return plain if shared is None or fails else shared


def _ready(worker: Worker, tier: DiskTier[DiskStore] | None, state: State) -> Ready:
    sizes = worker.sizes
    return Ready(
        sizes.pages,
        sizes.slots,
        sizes.max_model_len,
        worker.costs,
        worker.kernels,
        worker.copies,
        state,
        () if tier is None else tuple(tier.store.catalogue.everything()),
        0.0 if tier is None else tier.bytes_per_s,
    )


def _state(worker: Worker, tier: DiskTier[DiskStore] | None) -> State:
    pinning = worker.pinning
    return State(
        worker.counts.compiled(),
        worker.counts.device_bytes(),
        None if pinning is None else pinning.ready,
        pinning is None or pinning.ended,
        None if tier is None else tier.store.stats(),
    )


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}".partition("\n")[0]


def _show_life(control: Channel, built: threading.Event) -> None:
    """Tell control every few seconds that this process runs, until it is built; then its heartbeat does."""
    while not built.wait(_SIGN_EVERY):
        control.send(TOLD, encode(Here()))


def _end_with_engine(directory: str) -> None:
    """End this process as soon as standard input closes, which is when the engine has gone; one that was killed has left `directory`."""
    while os.read(0, 4096):
        pass
    # the signal ends this process even where another thread keeps the interpreter's lock: one that looks for the meeting's file in the
    # folder that is removed here does so for minutes
    signal.alarm(_LAST)
    while os.path.exists(directory):  # what other threads and ranks put there meanwhile goes the next time
        shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # what libraries would wait for as they end, other ranks may have left
