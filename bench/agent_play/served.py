"""A server in this process, with the real scheduler and cache, whose answers follow a script.

A call names its script by `seed`. Every token of a script is given as it stands, but for the signature: there the tell-tale decides, whose
choice depends on every byte of KV and state, so that an answer made from a wrong byte reads otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
import zmq

from stepwell.base.clock import WallClock
from stepwell.cache.config import CacheConfig
from stepwell.engine.config import EngineConfig, EngineFacts, Report
from stepwell.engine.owned import OwnedLoop
from stepwell.engine.process import messages
from stepwell.engine.process.serving import answers_address, commands_address, serve
from stepwell.engine.process.spawn import EngineLink
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.config import SchedConfig
from stepwell.sched.step import Work
from stepwell.server.generation.client import EngineClient
from stepwell.server.http.app import create_app
from stepwell.server.http.parts import Parts
from stepwell.server.observe.metrics import Metrics
from stepwell.server.prompt.template_use import TemplateUse
from stepwell.testing.agents import write_agent_tokenizer
from stepwell.testing.faults import InstantMover
from stepwell.testing.telltale import Memory, TellTaleRunner, geometry

VOCAB = 2048
CONTEXT = 262_144
SIGNATURE = -1
_EOS = 2
_BLOCK, _GRID = 16, 64
_PAGES, _SEQUENCES = 40_000, 8


@dataclass(slots=True)
class Scripts:
    """Tokens of answers by the seed that asks for them; those in `slow` come at `pace` tokens a second.

    words  what signatures are made of: a space and a word, which are one token wherever they stand
    """

    tokens: dict[int, list[int]] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    pace: float = 25.0
    words: list[int] = field(default_factory=list)

    def token(self, seed: int, index: int, drawn: int) -> int:
        script = self.tokens.get(seed)
        if script is None:
            return drawn
        told = script[index] if index < len(script) else _EOS
        return self.words[drawn % len(self.words)] if told == SIGNATURE else told


class ScriptedRunner(TellTaleRunner):
    """The tell-tale, which says what the script says."""

    def __init__(self, scripts: Scripts, *parts: Any) -> None:
        super().__init__(*parts)
        self._scripts = scripts

    def _run(self, work: Work) -> tuple[tuple[int, ...], list[int]]:
        drawn, read = super()._run(work)
        if not drawn or work.sample is None or not work.request_id:
            return drawn, read
        seed = work.sample.params.seed
        if seed in self._scripts.slow:
            time.sleep(1 / self._scripts.pace)
        token = self._scripts.token(seed, work.sample.index, drawn[0])
        self.draws[work.slot] = token
        return (token,), read


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    tokenizer: Tokenizer
    scripts: Scripts


def build_loop(scripts: Scripts) -> OwnedLoop:
    sizes = geometry(_BLOCK, _GRID)
    memory = Memory(sizes, _PAGES, 0, _SEQUENCES)
    cache = CacheConfig(sizes, _PAGES, 0, interval=8192)
    rules = SchedConfig(_SEQUENCES, 2048, CONTEXT, vocab=VOCAB, eos=(_EOS,))
    return OwnedLoop(
        cache, rules, ScriptedRunner(scripts, memory, sizes, VOCAB), InstantMover(memory.copy), WallClock()
    )


@contextlib.contextmanager
def served(template: str, use: TemplateUse | None = None) -> Iterator[Served]:
    """A server until the block ends."""
    scripts = Scripts()
    directory = tempfile.mkdtemp(prefix="sw-")
    tokenizer = Tokenizer.load(str(write_agent_tokenizer(Path(directory), VOCAB, CONTEXT, template)))
    texts = ((i, tokenizer.token_bytes(i).decode(errors="replace")) for i in range(VOCAB))
    scripts.words += [i for i, text in texts if text[:1] == " " and text[1:].isalpha() and text.isascii()]
    engine = threading.Thread(target=_engine, args=(build_loop(scripts), directory), daemon=True)
    front = _Front(directory, tokenizer, use or TemplateUse())
    engine.start()
    front.start()
    try:
        assert front.up.wait(60) and front.url, "the server did not start"
        yield Served(front.url, tokenizer, scripts)
    finally:
        front.stop()
        engine.join(30)
        shutil.rmtree(directory)


def _engine(loop: OwnedLoop, directory: str) -> None:
    context = zmq.Context()
    commands, answers = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    commands.bind(commands_address(directory))
    answers.connect(answers_address(directory))

    def factory(config: EngineConfig, report: Report) -> OwnedLoop:
        report(EngineFacts("scripted", CONTEXT, VOCAB))
        return loop

    serve(factory, EngineConfig("scripted"), commands, answers, WallClock())
    context.destroy(linger=1000)


class _Front(threading.Thread):
    """uvicorn and the engine's client, in the event loop of a thread."""

    def __init__(self, directory: str, tokenizer: Tokenizer, use: TemplateUse) -> None:
        super().__init__(daemon=True)
        self._parts = directory, tokenizer, use
        self._server: uvicorn.Server | None = None
        self.url = ""
        self.up = threading.Event()

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self.join(30)

    async def _run(self) -> None:
        directory, tokenizer, use = self._parts
        link, metrics = EngineLink(directory), Metrics()
        client = EngineClient(link, metrics)
        facts = await client.ready()
        metrics.watch(lambda: client.stats, lambda: client.dead is None)
        listener = socket.create_server(("127.0.0.1", 0))
        app = create_app(Parts(client, tokenizer, facts, metrics, template=use))
        self._server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=3))
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            await asyncio.sleep(0.005)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.up.set()
        await serving
        client.close()
        link.send(messages.Stop())
        await asyncio.sleep(0.05)
        link.close()
