"""Control's hold on the processes of ranks: starts them, gives them orders, takes their answers, ends them."""

from __future__ import annotations

import logging
import select
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

import msgspec

from stepwell.base.children import command, environment
from stepwell.base.clock import Clock, WallClock
from stepwell.base.errors import ConfigError, RankError
from stepwell.engine.config import DiskCache, EngineConfig
from stepwell.engine.process import private
from stepwell.engine.ranks.channel import Channel, pair
from stepwell.engine.ranks.watch import Watch
from stepwell.engine.ranks.wire import (
    FOUND,
    REPORTS,
    RESULT,
    STOP,
    Begin,
    Building,
    Failed,
    Ready,
    State,
    decode_told,
)

log = logging.getLogger(__name__)

_LOOK = 0.05
"""Seconds that control waits for an answer before it asks whether all ranks are well."""
_PATIENCE = 5.0
"""Seconds in which ranks end that were told to."""
_SILENCE = 600.0
"""Seconds without a sign of life after which a rank that is being built is taken to hang: it sends one every 5 s."""


class RankProcesses:
    """The ranks of one engine; use it in `with`. `ready` is what each said once it had been built.

    All but `states` belongs to one thread, the engine's. Each call may raise RankError, which names the rank at fault.
    """

    def __init__(self, config: EngineConfig, log_level: int, log_format: str) -> None:
        self._config = config
        self._logs = log_level, log_format
        self._clock: Clock = WallClock()
        self._directory = private.new_folder("stepwell-ranks-")
        self._channels: list[Channel] = []
        self._signs: list[Channel] = []
        self._rank_of: dict[int, int] = {}
        self._heard = select.poll()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._told: deque[tuple[int, bytes]] = deque()
        self._results: deque[bytes] = deque()
        self._watch: Watch | None = None
        self._closed = False
        self.reports: list[list[bytes]] = [[] for _ in range(config.tensor_parallel_size)]
        self.found: list[tuple[int, bytes]] = []
        self.ready: tuple[Ready, ...] = ()

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self, tell: Callable[[str], None]) -> None:
        """Start the ranks and wait until all are built; `tell` hears what the first is doing. Raises ConfigError or RankError."""
        for rank in range(self._config.tensor_parallel_size):
            self._processes.append(self._begun(rank))
        ready: dict[int, Ready] = {}
        heard = dict.fromkeys(range(len(self._processes)), self._clock.now())
        while len(ready) < len(self._processes):
            self._wait_for_start(ready, heard, tell)
        self.ready = tuple(ready[rank] for rank in range(len(ready)))
        states = [one.state for one in self.ready]
        self._watch = Watch(self._processes, self._signs, self._config.worker_timeout, states, self._clock)

    @property
    def states(self) -> Sequence[State]:
        """What each rank counts, as last heard."""
        self.check()
        assert self._watch is not None
        return tuple(self._watch.states)

    def check(self) -> None:
        """Raises RankError where one is not well."""
        if self._watch is not None and self._watch.fault:
            raise RankError(self._watch.fault)

    def send(self, kind: int, data: bytes = b"", more: bytes = b"") -> None:
        """Send every rank the same order. Never waits, whatever has become of the ranks."""
        self.check()
        for channel in self._channels:
            channel.post(kind, data, more)
            if channel.unsent and not channel.ended:
                self._heard.modify(channel, select.POLLIN | select.POLLOUT)

    def result(self) -> bytes:
        """Wait for the first rank's next result."""
        while not self._results:
            self.check()
            self._take(_LOOK)
        return self._results.popleft()

    def hear(self, seconds: float) -> bool:
        """Take what has been answered, waiting for it at most this long, or a little longer; whether anything has."""
        self.check()
        heard, left = self._take(0), seconds
        while not heard and left > 0:
            heard = self._take(min(left, _LOOK))
            self.check()
            left -= _LOOK
        return heard

    def _take(self, seconds: float) -> bool:
        """Take all that has been answered, waiting for the first at most so long; whether there was any. Sends on what is left to send."""
        heard = False
        for number, ready in self._heard.poll(1000 * seconds):
            rank = self._rank_of[number]
            channel = self._channels[rank]
            if ready & select.POLLOUT:
                channel.flush()
                if not channel.unsent:
                    self._heard.modify(channel, select.POLLIN)
            if ready != select.POLLOUT:
                heard |= self._take_from(rank, channel)
        return heard

    def _take_from(self, rank: int, channel: Channel) -> bool:
        channel.take()
        messages = channel.messages()
        for kind, data, _ in messages:
            if kind == RESULT:
                self._results.append(data)
            elif kind == REPORTS:
                self.reports[rank].append(data)
            elif kind == FOUND:
                self.found.append((rank, data))
            else:
                self._told.append((rank, data))
        if channel.ended:  # that can always be read: waiting for the others would not wait
            self._heard.unregister(channel)
        return bool(messages)

    def close(self) -> None:
        """Tell the ranks to end, and end them if they do not. Leaves nothing behind; twice does no harm."""
        if self._closed:
            return
        self._closed = True
        well = self._watch is not None and not self._watch.fault
        if self._watch is not None:
            self._watch.close()
        if well:
            for channel in self._channels:
                channel.post(STOP)
        self._heard = select.poll()
        for channel in self._channels:
            channel.close()  # a rank that waits to send waits no longer
        deadline = self._clock.now() + (_PATIENCE if well else 0.0)
        for rank, process in enumerate(self._processes):
            if not _ends(process, deadline - self._clock.now()):
                if well:
                    log.warning("rank %d did not end within %g s: it is killed", rank, _PATIENCE)
                process.kill()
                if not _ends(process, _PATIENCE):
                    log.error("rank %d (process %d) does not end although it was killed", rank, process.pid)
            assert process.stdin is not None
            process.stdin.close()
        for channel in self._signs:
            channel.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _begun(self, rank: int) -> subprocess.Popen[bytes]:
        # all ranks are on this machine; what would need multicast between GPUs is left out
        own = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0"}
        (channel, orders), (heard, signs) = pair(), pair()
        self._channels.append(channel)
        self._signs.append(heard)
        self._rank_of[channel.fileno()] = rank
        self._heard.register(channel, select.POLLIN)
        with orders, signs:  # the rank has them then, and nobody else
            process = subprocess.Popen(
                command("stepwell.engine.ranks.process"),
                stdin=subprocess.PIPE,
                bufsize=0,
                env=environment(**own, TORCH_SYMM_MEM_DISABLE_MULTICAST="1"),
                pass_fds=(orders.fileno(), signs.fileno()),
            )
            begin = Begin(
                config_of(self._config, rank), rank, self._directory, orders.fileno(), signs.fileno(), *self._logs
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # one that has ended already is told as the others are waited for
            process.stdin.write(msgspec.json.encode(begin) + b"\n")  # it stays open: a rank ends when it closes
        return process

    def _wait_for_start(self, ready: dict[int, Ready], heard: dict[int, float], tell: Callable[[str], None]) -> None:
        if not self._told and not self._take(_LOOK):
            for number, process in enumerate(self._processes):
                if (status := process.poll()) is not None and not self._take(0.1):
                    raise RankError(f"rank {number} ended with status {status} while it was being started")
            self._check_silence({rank: at for rank, at in heard.items() if rank not in ready})
            return
        rank, data = self._told.popleft()
        heard[rank] = self._clock.now()
        match decode_told(data):
            case Building(phase) if not rank:
                tell(phase)
            case Failed(reason, config):
                raise ConfigError(reason) if config else RankError(f"rank {rank} could not be started: {reason}")
            case Ready() as told:
                ready[rank] = told

    def _check_silence(self, heard: dict[int, float]) -> None:
        silent = [rank for rank, at in heard.items() if self._clock.now() - at > _SILENCE]
        if silent:
            names = " and ".join(f"rank {rank}" for rank in silent)
            raise RankError(f"{names} gave no sign of life for {_SILENCE:g} s of the start")


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a process, at most this long; whether it has ended."""
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def config_of(config: EngineConfig, rank: int) -> EngineConfig:
    """What one rank is to be built as: host memory and disk are shared evenly, device memory is each one's. Faults befall the last rank."""
    ranks = config.tensor_parallel_size
    disk = config.disk_cache
    if disk is not None:
        disk = DiskCache(f"{disk.path}/rank-{rank}-of-{ranks}", disk.bytes // ranks)
    faults = config.faults if rank == ranks - 1 else ()
    return replace(config, host_memory=config.host_memory // ranks, disk_cache=disk, faults=faults)
