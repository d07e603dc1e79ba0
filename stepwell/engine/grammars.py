"""Grammars made ready to be followed, beside the engine's loop.

Reading a large grammar against a large vocabulary takes up to seconds, without the interpreter's lock. It is done once for each grammar,
in threads; every request that asks for the same one then starts from a copy, which costs microseconds.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stepwell.base.errors import StepwellError
from stepwell.engine.tokenizer import byte_pieces

_THREADS = 2  # one that reads a huge grammar leaves the other to the small ones
_MOST_CHARACTERS = 2_000_000  # of all grammars that are kept: 150 MB at most, as measured
_STACK = 256 * 2**20  # bytes; rules that lead to rules, 100,000 characters of them, were seen to take up to 128 MB


class GuideError(StepwellError):
    """This request's grammar cannot be followed."""


def reading_threads(count: int = _THREADS) -> ThreadPoolExecutor:
    """Threads that may read grammars: llguidance follows references by recursion, and a stack that overflows ends the process."""
    pool = ThreadPoolExecutor(count, "grammar")
    usual = threading.stack_size(_STACK)  # of threads that start from now on: all of the pool's are made to
    try:
        together = threading.Barrier(count)
        for waits in [pool.submit(together.wait) for _ in range(count)]:
            waits.result()
    finally:
        threading.stack_size(usual)
    return pool


class Grammars:
    """Owns the readers of grammars, and the last `keep` of what they have read. Used by one thread."""

    __slots__ = ("_awaited", "_directory", "_ends", "_fault", "_keep", "_pool", "_ready", "_tokenizer", "_vocab")

    def __init__(self, directory: str, vocab: int, eos_token_ids: tuple[int, ...], keep: int) -> None:
        """`directory` holds tokenizer.json."""
        self._directory = directory
        self._vocab = vocab
        self._ends = list(eos_token_ids)
        self._keep = keep
        self._ready: OrderedDict[bytes, tuple[int, Future[Any]]] = OrderedDict()
        self._awaited: dict[str, Future[Any]] = {}  # by request
        self._pool = reading_threads()
        self._tokenizer: Any = None
        self._fault: str | None = None

    @property
    def fault(self) -> str | None:
        """Why no grammar can be followed with this vocabulary; None where one can, or where nobody has tried to read it."""
        return self._fault

    def warm(self) -> None:
        """Read the vocabulary now: that holds up everything for seconds where it is large. Raises GuideError.

        A vocabulary that cannot be read is not read again: every later call raises the same error at once.
        """
        if self._fault is not None:
            raise GuideError(self._fault)
        if self._tokenizer is None:
            try:
                self._tokenizer = _read_tokenizer(Path(self._directory) / "tokenizer.json", self._vocab, self._ends)
            except GuideError as error:
                self._fault = str(error)
                raise

    def prepare(self, request_id: str, grammar: str) -> bool:
        """Whether `reading` would be done; begins what is missing for that. A wrong grammar is ready, too: to be refused.

        What a request waits for is begun once, however many others are asked for meanwhile. Ask until it is ready, or `drop` it.
        """
        try:
            reading = self._awaited.get(request_id) or self.reading(grammar)
        except GuideError:
            return True
        if not reading.done():
            self._awaited[request_id] = reading
            return False
        self._awaited.pop(request_id, None)
        self._remember(grammar, reading)
        return True

    def drop(self, request_id: str) -> None:
        """This request waits no longer."""
        self._awaited.pop(request_id, None)

    def close(self) -> None:
        """End the threads; a grammar that is being read is read to its end."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def reading(self, grammar: str) -> Future[Any]:
        """What `begin` takes, once it has been read. Raises GuideError where the vocabulary cannot be."""
        known = self._ready.get(digest(grammar))
        if known is None:
            self.warm()
            known = len(grammar), self._pool.submit(_read, self._tokenizer, grammar)
        self._remember(grammar, known[1])
        return known[1]

    def _remember(self, grammar: str, reading: Future[Any]) -> None:
        """As the last that was asked for; those asked for longest ago are forgotten where there are too many."""
        name = digest(grammar)
        self._ready[name] = len(grammar), reading
        self._ready.move_to_end(name)
        while len(self._ready) > 1 and (len(self._ready) > self._keep or self._size > _MOST_CHARACTERS):
            self._ready.popitem(last=False)

    @property
    def awaited(self) -> list[Future[Any]]:
        """What is being read and a request waits for."""
        return [reading for reading in self._awaited.values() if not reading.done()]

    @property
    def kept(self) -> int:
        """Grammars that are remembered."""
        return len(self._ready)

    @property
    def _size(self) -> int:
        return sum(size for size, _ in self._ready.values())


def digest(grammar: str) -> bytes:
    """Names a grammar. O(its characters)."""
    return hashlib.blake2b(grammar.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def begin(read: Any) -> Any:
    """A parser at the beginning of a grammar that has been read. Raises GuideError."""
    if read.is_error():
        raise GuideError(f"the grammar cannot be followed: {first_line(read.get_error())}")
    return read.deep_copy()


def first_line(message: str) -> str:
    """What llguidance says, without the state of its parser."""
    return message.partition("\n")[0]


def _read(tokenizer: Any, grammar: str) -> Any:
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()  # the first one reads on: not in a step
    return matcher


class _Words:
    """A byte-level vocabulary as llguidance wants it. Its own reader takes every added token whose name is in angle brackets
    for a special one, so that text such as <tool_call> could be in no answer."""

    def __init__(self, backend: Any, pieces: list[bytes], vocab: int, ends: list[int]) -> None:
        special = {i: token.content for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self.tokens = [special[i].encode() if i in special else piece for i, piece in enumerate(pieces)]
        self.tokens += [b""] * (vocab - len(pieces))
        self.special_token_ids = sorted(special)
        self.eos_token_id = ends[0] if ends else (self.special_token_ids or [0])[0]
        self.bos_token_id = None
        self._backend = backend

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def _read_tokenizer(path: Path, vocab: int, ends: list[int]) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper
    from tokenizers import Tokenizer

    try:
        text = path.read_text("utf-8")
        backend = Tokenizer.from_str(text)
    except Exception as error:  # whatever the file and its reader think of
        raise GuideError(f"grammars need {path}: {error}") from error
    pieces = byte_pieces(backend)
    source = text if pieces is None else TokenizerWrapper(_Words(backend, pieces, vocab, ends))
    try:
        return LLTokenizer(source, n_vocab=vocab, eos_token=ends or None)
    except Exception as error:  # llguidance reads byte-level and byte-fallback vocabularies, and raises several types
        raise GuideError(f"llguidance cannot read the vocabulary in {path}: {first_line(str(error))}") from error
