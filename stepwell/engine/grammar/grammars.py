"""Grammars made ready to be followed, beside the engine's loop.

Reading a large grammar against a large vocabulary takes up to seconds. A process does it once for each grammar; every request that asks
for the same one then starts from a copy, which costs microseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future

from stepwell.engine.grammar import wire
from stepwell.engine.grammar.client import GrammarProcess
from stepwell.engine.grammar.desk import Desk
from stepwell.engine.grammar.fair_pool import Counter, FairPool
from stepwell.engine.grammar.process import MOST_BYTES, READING
from stepwell.engine.grammar.vocabulary import GuideError, read_vocabulary
from stepwell.sched.request import SamplingParams

_GIVES_WAY = (
    10  # niceness of the process for dear grammars: where processors are scarce, it has a tenth of what a step has
)


class Grammars:
    """Owns the processes, and knows the last `keep` grammars that have been read. Used by one thread.

    quick, dear   desks of the two processes, for grammars whose masks are; both start when they are needed
    """

    __slots__ = (
        "_awaited",
        "_fault",
        "_keep",
        "_pool",
        "_processes",
        "_ready",
        "_tried",
        "_vocabulary",
        "dear",
        "quick",
    )

    def __init__(self, directory: str, vocab: int, eos_token_ids: tuple[int, ...], keep: int) -> None:
        """`directory` holds tokenizer.json."""
        self._vocabulary = directory, vocab, eos_token_ids
        self._keep = keep
        self._ready: OrderedDict[bytes, tuple[int, Future[wire.Told]]] = OrderedDict()
        self._awaited: dict[str, Future[wire.Told]] = {}  # by request
        self._pool = FairPool(*[Counter(self._read)] * READING)
        self._tried = False
        self._fault: str | None = None
        self._processes = [GrammarProcess(wire.Start(*self._vocabulary, keep, nice)) for nice in (0, _GIVES_WAY)]
        self.quick, self.dear = map(Desk, self._processes)

    @property
    def fault(self) -> str | None:
        """Why no grammar can be followed with this vocabulary; None if one can, or if the vocabulary has not been read yet."""
        return self._fault

    def warm(self) -> None:
        """Try to read the vocabulary, here and now: that holds up everything for seconds where it is large. Raises GuideError.

        It is tried once: where it cannot be read every later call raises the same error at once.
        """
        if not self._tried:
            self._tried = True
            try:
                read_vocabulary(*self._vocabulary)
            except GuideError as error:
                self._fault = str(error)
        if self._fault is not None:
            raise GuideError(self._fault)

    def prepare(self, request_id: str, params: SamplingParams) -> bool:
        """Whether `reading` would be done; begins what is missing for that. A wrong grammar is ready, too: to be refused.

        What a request waits for is begun once, however many others are asked for meanwhile. Ask until it is ready, or `drop` it.
        """
        try:
            reading = self._awaited.get(request_id) or self.reading(params)
        except GuideError:
            return True
        if not reading.done():
            self._awaited[request_id] = reading
            return False
        self._awaited.pop(request_id, None)
        self._remember(encoded(params.grammar), reading)
        return True

    def drop(self, request_id: str) -> None:
        """This request waits no longer."""
        self._awaited.pop(request_id, None)

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for process in self._processes:
            process.close()
        self._pool.close()

    def reading(self, params: SamplingParams) -> Future[wire.Told]:
        """Done once the grammar can be followed, or cannot: see `expect_read`. Its caller's turn comes as with masks. Raises GuideError
        where no grammar can be followed."""
        text = encoded(params.grammar)
        known = self._ready.get(wire.digest(text))
        if known is None:
            self.warm()
            known = len(text), self._pool.submit(params.grammar_for, b"", text)
        self._remember(text, known[1])
        return known[1]

    def _read(self, texts: Sequence[bytes]) -> Iterator[wire.Told]:
        return map(self.quick.read, texts)

    def _remember(self, text: bytes, reading: Future[wire.Told]) -> None:
        """As the last that was asked for; those asked for longest ago are forgotten where there are too many."""
        name = wire.digest(text)
        self._ready[name] = len(text), reading
        self._ready.move_to_end(name)
        while len(self._ready) > 1 and (len(self._ready) > self._keep or self._size > MOST_BYTES):
            self._ready.popitem(last=False)

    @property
    def awaited(self) -> list[Future[wire.Told]]:
        """What is being read and a request waits for."""
        return [reading for reading in self._awaited.values() if not reading.done()]

    @property
    def kept(self) -> int:
        """Grammars that are remembered."""
        return len(self._ready)

    @property
    def _size(self) -> int:
        return sum(size for size, _ in self._ready.values())


def expect_read(reading: Future[wire.Told]) -> None:
    """Wait for a grammar to be read. Raises GuideError where it cannot be followed."""
    try:
        told = reading.result()
    except CancelledError as error:
        raise GuideError("the engine is closing") from error
    if told.fault:
        raise GuideError(told.fault)


def encoded(grammar: str) -> bytes:
    """A grammar as it is named and sent."""
    return grammar.encode("utf-8", "surrogatepass")
