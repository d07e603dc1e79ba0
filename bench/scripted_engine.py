"""An engine whose model says what it is told to: the real scheduler and cache, and a runner that computes nothing.

`build` is a factory as `stepwell.engine.process.spawn` names it. A request with seed N answers with the tokens of
`MODEL/scripts/N.json`, others with the end of a turn. Each admission is a line of `MODEL/ledger.jsonl`: what of its prompt had been
computed before, as an earlier prompt or answer, and what of that the cache gave back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.base.clock import WallClock
from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.engine.config import EngineConfig, EngineFacts, Report
from stepwell.engine.owned import OwnedLoop
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Admitted, Event, Finished, Request, Tokens
from stepwell.sched.step import Done, Pass, Step, StepResult, Work
from stepwell.testing.faults import InstantMover
from stepwell.testing.telltale import geometry

VOCAB = 2048
END = 2
PAGES = 32_768  # of 16 tokens: half a million
SLOTS = 65_536


class ScriptedRunner:
    """Says the script of each request, token after token, and the end of a turn for ever after."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scripts: dict[int, list[int]] = {}

    def launch(self, step: Step) -> Pass:
        return Done(StepResult(tuple(map(self._sampled, step.works))))

    def _sampled(self, work: Work) -> tuple[int, ...]:
        return () if work.sample is None else (self._token(work.sample.params.seed, work.sample.index),)

    def _token(self, seed: int, index: int) -> int:
        script = self._scripts.get(seed)
        if script is None:
            file = self._folder / f"{seed}.json"
            script = self._scripts[seed] = json.loads(file.read_text("utf-8")) if file.exists() else []
        return script[index] if index < len(script) else END


class Ledger(OwnedLoop):
    """The real loop, which notes how much of each prompt had been computed before."""

    def __init__(self, file: Path, *parts: Any) -> None:
        super().__init__(*parts)
        self._file = file
        self._earlier: list[Ints] = []
        self._shared_with: dict[str, int] = {}
        self._growing: dict[str, list[int]] = {}

    def submit(self, request: Request) -> None:
        super().submit(request)
        self._shared_with[request.id] = max((_shared(request.prompt, other) for other in self._earlier), default=0)
        self._growing[request.id] = request.prompt.tolist()
        self._earlier.append(request.prompt)

    def step(self, *, wait: float = 0.05) -> list[Event]:
        events = super().step(wait=wait)
        for event in events:
            match event:
                case Admitted(request_id, outcome):
                    if request_id in self._shared_with:
                        self._note(self._shared_with.pop(request_id), outcome)
                case Tokens(request_id, tokens) if request_id in self._growing:
                    self._growing[request_id] += tokens
                case Finished(request_id) if request_id in self._growing:
                    tokens = self._growing.pop(request_id)[:-1]  # the last one was sampled, and never read
                    self._earlier.append(np.array(tokens, np.int32))
        return events

    def _note(self, known: int, outcome: AdmissionOutcome) -> None:
        line = {"id": outcome.request_id, "prompt": outcome.prompt, "known": known, "cached": outcome.cached}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | {"why": outcome.in_one_line()}) + "\n")


def _shared(one: Ints, other: Ints) -> int:
    """Tokens that both begin with."""
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    return int(differ.argmax()) if differ.any() else count


def build(config: EngineConfig, report: Report) -> Ledger:
    folder, sizes = Path(config.model), geometry(16, 64)
    longest = config.max_model_len or 262_144
    cache = CacheConfig(sizes, PAGES, SLOTS, interval=config.state_checkpoint_interval_tokens)
    rules = SchedConfig(config.max_num_seqs, 2048, longest, eos=(END,), vocab=VOCAB)
    runner = ScriptedRunner(folder / "scripts")
    loop = Ledger(folder / "ledger.jsonl", cache, rules, runner, InstantMover(), WallClock())
    report(EngineFacts(config.name, loop.longest, VOCAB))
    return loop
