"""An engine in this process, which can be made to serve from one tier alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import TracebackType
from typing import Self

import numpy as np

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.geometry import Ints
from stepwell.cache.evict.make_room import demotion, free_pages
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.engine.build import build_engine
from stepwell.engine.config import EngineConfig, EngineFacts
from stepwell.engine.owned import OwnedLoop
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.eval.subject import Answer, Sources, Told
from stepwell.sched.request import Admitted, Finished, Request, SamplingParams, Scored, Tokens
from stepwell.sched.retention import Subject
from stepwell.store.device import DeviceArena

_FAILED = (Reason.LOAD_FAILED_KV, Reason.LOAD_FAILED_STATE)
_PATIENCE = 600.0
"""Seconds within which everything must be written to disk."""


@dataclass(slots=True)
class Heard:
    """What came of one request. `scores` are log-probabilities of prompt tokens from `scored_from` on."""

    outcome: AdmissionOutcome | None = None
    tokens: list[int] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    scored_from: int = 0

    def take(self, event: Admitted | Tokens) -> None:
        if isinstance(event, Admitted):
            self.outcome = self.outcome or event.outcome
            return
        self.tokens += event.tokens
        if event.prompt_scores:
            self.scored_from = self.scored_from or event.prompt_from
            self.scores += event.prompt_scores


class LocalSubject:
    """Owns the engine, whose device pages are `arenas[0]`. `with` it, or close it.

    tier   where each prompt is to come from in a later pass. DEVICE: wherever the engine has it. HOST: after each batch all that the
           device holds is copied to host and dropped. DISK: likewise, and the engine is started anew between passes.
    """

    def __init__(self, config: EngineConfig, tier: Tier, max_tokens: int, at_once: int) -> None:
        if tier == Tier.HOST and not config.host_memory:
            raise ConfigError("--tier host needs a host tier: give --host-memory")
        if tier == Tier.DISK and config.disk_cache is None:
            raise ConfigError("--tier disk needs a disk tier: give --disk-cache PATH:SIZE")
        # what lies in host would be served from there
        self._config = replace(config, host_memory=0) if tier == Tier.DISK else config
        self._tier = tier
        self._params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self._at_once = at_once
        self._numbers = count()
        self._failed = 0
        self.tokenizer = Tokenizer.load(config.model)
        self.arenas: list[DeviceArena] = []
        self.loop = self._started()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._config.name

    def close(self) -> None:
        """Release the engine, without a last write to disk."""
        self.loop.end(0.0)

    def answer(self, prompts: Sequence[str], told: Told) -> list[Answer]:
        answers: list[Answer] = []
        for first in range(0, len(prompts), self._at_once):
            batch = prompts[first : first + self._at_once]
            heard = self.run([self.request(self.tokenizer.encode(prompt), self._params) for prompt in batch])
            answers += map(self._answer, heard)
            self.sink()
            told(len(batch))
        return answers

    def between(self) -> None:
        if self._tier == Tier.DISK:
            if not self.loop.end(_PATIENCE):
                raise StepwellError(f"not all was written to disk within {_PATIENCE:g} s: use a faster disk")
            self.loop = self._started()

    def failed_loads(self) -> int:
        return self._failed

    def request(self, prompt: Ints, params: SamplingParams, *, read: bool = True, write: bool = True) -> Request:
        """A request of a new name."""
        return Request(f"eval-{next(self._numbers)}", prompt, params, read_cache=read, write_cache=write)

    def run(self, requests: Sequence[Request]) -> list[Heard]:
        """Serve them together; what came of each. Raises StepwellError where one fails."""
        heard = {request.id: Heard() for request in requests}
        for request in requests:
            self.loop.submit(request)
        waiting = set(heard)
        while waiting:
            for event in self.loop.step():
                if isinstance(event, Finished):
                    if event.reason in ("error", "abort"):
                        raise StepwellError(f"the engine gave up a question: {event.message}")
                    waiting.discard(event.request_id)
                elif isinstance(event, Admitted | Tokens) and event.request_id in heard:
                    heard[event.request_id].take(event)
        return list(heard.values())

    def score(self, prompt: Ints, gold: Ints, *, read: bool = True, write: bool = False) -> list[float]:
        """Nats of each token of `gold` behind `prompt`, each with all before it given.

        Where `read`, the first ones are missing if the cache reaches into the answer: the model has said them itself before.
        """
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True)
        (heard,) = self.run([self.request(np.concatenate((prompt, gold)), params, read=read, write=write)])
        return [-score.logprob for score in heard.scores[max(0, len(prompt) - heard.scored_from) :]]

    def bring(self, prompt: Ints) -> None:
        """Have the KV and the image that `prompt` resumes from on the device; computed anew where they are nowhere."""
        self.run([self.request(prompt, SamplingParams(max_tokens=1))])
        self.loop.prefetch(next(self._numbers), Subject("", prompt))
        while not self.loop.prefetched():
            self.loop.step()

    def sink(self) -> None:
        """Copy all that the device holds to the tier that is judged, and drop it on the device."""
        if self._tier == Tier.DEVICE:
            return
        directory = self.loop.directory
        device, before = directory.pools[Tier.DEVICE], -1
        while before < device.free < device.total:  # what others hang on comes after them
            before = device.free
            if self._tier == Tier.HOST:
                self.loop.queues.moves.extend(demotion(directory, device.total).moves)
            self._settle()
            free_pages(directory, device.total)

    def _settle(self) -> None:
        """Let every copy end."""
        end = time.monotonic() + _PATIENCE
        while self.loop.busy:
            if time.monotonic() > end:
                raise StepwellError(f"copies are still under way after {_PATIENCE:g} s")
            self.loop.step()

    def _started(self) -> OwnedLoop:
        self.arenas.clear()
        return build_engine(self._config, _unheard, self.arenas.append)

    def _answer(self, heard: Heard) -> Answer:
        outcome = heard.outcome
        assert outcome is not None, "a request that ended well was admitted"
        failed = outcome.reason in _FAILED
        self._failed += failed
        sources = Sources(outcome.prompt, outcome.device, outcome.host, outcome.disk)
        text = self.tokenizer.decode(heard.tokens)
        return Answer(text, tuple(heard.tokens), True, sources, outcome.loaded, failed)


def _unheard(told: EngineFacts | str) -> None:
    """The engine's report of itself is nobody's here."""
