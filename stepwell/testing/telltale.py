"""A model that gives every cache fault away, in microseconds and without tensors.

Its state is a rolling digest of everything it has read; each KV cell is a digest of (root, tokens so far, layer) and fills
the page's whole stride; the next token is a digest of the state and of every KV cell up to here. A byte that is missing, stale,
shifted, foreign or doubled anywhere changes the next token and all that follow. There is no tolerance.

    answer   what a cold run must say, computed without engine, pages or cache
    content  what a cache of a prompt must hold, byte for byte
    Memory   device, host and live states as plain arrays; copies between them
    TellTaleRunner   a `Runner` over that memory
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Geometry, Ints
from stepwell.cache.moves import LiveState, Move, Tier
from stepwell.cache.tree import root_number
from stepwell.sched.step import Fresh, FromImage, Step, StepResult, Work

Words = npt.NDArray[np.uint64]

LAYERS = 2
POISON = np.uint64(0xDEADDEADDEADDEAD)
_MULTIPLIER = 0x9E3779B97F4A7C15 | 1
_MASK = (1 << 64) - 1
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)


def _powers(base: int, count: int) -> Words:
    out = np.full(count, base, np.uint64)
    out[:1] = 1
    return np.multiply.accumulate(out)


def _mix(words: Words) -> Words:
    """A bijective scramble of each word (the finalizer of splitmix64, Steele et al. 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)), np.uint64)


def _fold(digest: int, tokens: Ints) -> Words:
    """Digests after each of `tokens`, uint64 [n]: d ← d·m + mix(token), for the whole run at once."""
    count = len(tokens)
    scaled = _mix(tokens.astype(np.uint64) + np.uint64(1)) * _powers(_INVERSE, count + 1)[1:]
    sums = np.cumsum(scaled, dtype=np.uint64) + np.uint64(digest)
    return np.asarray(sums * _powers(_MULTIPLIER, count + 1)[1:], np.uint64)


def _seed(root: int) -> int:
    return (root * 0x632BE59BD9B4E019 + 0x1234567) & _MASK


def _cells(digests: Words) -> Words:
    """KV of each token in each layer, [n, LAYERS]."""
    return _mix(digests[:, None] + np.arange(1, LAYERS + 1, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93))


def _choose(digest: int, count: int, cells: Words, vocab: int) -> int:
    """The next token: depends on the state and on every cell at its own place."""
    places = np.arange(cells.size, dtype=np.uint64).reshape(cells.shape)
    read = int(np.bitwise_xor.reduce(_mix(cells + places * np.uint64(0xA0761D6478BD642F)), axis=None))
    word = np.array([(read * _MULTIPLIER + digest + count) & _MASK], np.uint64)
    return int(_mix(word)[0] % np.uint64(vocab))


def answer(prompt: Ints, count: int, vocab: int, salt: str = "") -> list[int]:
    """The `count` tokens that follow `prompt` under `salt`, as a cold run gives them."""
    tokens = np.asarray(prompt, np.int32)
    out: list[int] = []
    digests = _fold(_seed(root_number(salt)), tokens)
    for _ in range(count):
        out.append(_choose(int(digests[-1]), len(digests), _cells(digests), vocab))
        digests = np.concatenate([digests, _fold(int(digests[-1]), np.array(out[-1:], np.int32))])
    return out


def content(tokens: Ints, salt: str = "") -> tuple[Words, Words]:
    """What a cache of `tokens` under `salt` must hold: digests after each token, uint64 [n], and KV, uint64 [n, LAYERS]."""
    digests = _fold(_seed(root_number(salt)), np.asarray(tokens, np.int32))
    return digests, _cells(digests)


def blank(salt: str = "") -> int:
    """The digest of the empty prefix of `salt`."""
    return _seed(root_number(salt))


def geometry(block: int = 4, rung_grid: int = 8, image_pages: int = 2) -> Geometry:
    """The tell-tale's sizes: a page is `block` cells of LAYERS words."""
    page_bytes = block * LAYERS * 8
    return Geometry(block, rung_grid, page_bytes, image_pages * page_bytes)


class Memory:
    """Slots of both tiers, [slots, words of a page], and live states, [slots, (digest, tokens folded)]."""

    def __init__(self, sizes: Geometry, device_pages: int, host_slots: int, live_slots: int) -> None:
        self.words = sizes.block * LAYERS
        self.arenas = {
            Tier.DEVICE: np.full((device_pages, self.words), POISON, np.uint64),
            Tier.HOST: np.full((host_slots, self.words), POISON, np.uint64),
        }
        self.live = np.full((live_slots, 2), POISON, np.uint64)

    def copy(self, move: Move) -> None:
        """Carry out one move."""
        rows = self.arenas[move.source.tier][move.source.slots]
        if isinstance(move.target, LiveState):
            self.live[move.target.slot] = self.unpack(rows)
        else:
            self.arenas[move.target.tier][move.target.slots] = rows

    def pack(self, state: tuple[int, int], pages: int) -> Words:
        """An image that fills `pages` pages: every word depends on the state and on its own place."""
        image = np.empty(pages * self.words, np.uint64)
        image[0::2], image[1::2] = state
        image[2:] ^= _mix(np.arange(2, len(image), dtype=np.uint64))
        return image.reshape(pages, self.words)

    def unpack(self, rows: Words) -> Words:
        """(digest, count) of an image; every word of it is looked at."""
        flat = rows.reshape(-1).copy()
        flat[2:] ^= _mix(np.arange(2, len(flat), dtype=np.uint64))
        if (flat[0::2] != flat[0]).any() or (flat[1::2] != flat[1]).any():
            return np.array([np.bitwise_xor.reduce(_mix(flat)), POISON], np.uint64)
        return flat[:2]

    def poison(self, tier: Tier, slots: Ints) -> None:
        """Overwrite slots that nobody may read any more."""
        if tier in self.arenas:
            self.arenas[tier][slots] = POISON


class TellTaleRunner:
    """Computes steps exactly as told, faults included; raises only where a work contradicts itself."""

    def __init__(self, memory: Memory, sizes: Geometry, vocab: int = 1000) -> None:
        self.vocab = vocab
        self.steps: list[Step] = []
        self._memory = memory
        self._block = sizes.block

    def run(self, step: Step) -> StepResult:
        self.steps = [step]
        for work in step.works:
            self._start(work)
        return StepResult(tuple(self._run(work, step.repeat) for work in step.works))

    def _start(self, work: Work) -> None:
        live, device = self._memory.live, self._memory.arenas[Tier.DEVICE]
        if isinstance(work.state, Fresh):
            live[work.slot] = (_seed(work.root), 0)
        elif isinstance(work.state, FromImage):
            live[work.slot] = self._memory.unpack(device[work.state.pages])

    def _run(self, work: Work, repeat: int) -> tuple[int, ...]:
        tokens, sampled, start = work.tokens, [], work.start
        for _ in range(repeat):
            self._forward(work, tokens, start)
            start += len(tokens)
            if work.sample is None:
                return ()
            digest, count = (int(word) for word in self._memory.live[work.slot])
            sampled.append(_choose(digest, count, self._read(work.pages, start), self.vocab))
            tokens = np.array(sampled[-1:], np.int32)
        return tuple(sampled)

    def _forward(self, work: Work, tokens: Ints, start: int) -> None:
        """Fold the tokens, write their cells, leave images at the cuts."""
        memory = self._memory
        digest, count = (int(word) for word in memory.live[work.slot])
        digests = _fold(digest, tokens)
        end = start + len(tokens)
        positions = np.arange(start, end)
        written = positions >= work.write_from
        pages = work.pages[positions[written] // self._block]
        view = memory.arenas[Tier.DEVICE].reshape(-1, self._block, LAYERS)
        view[pages, positions[written] % self._block] = _cells(digests)[written]
        for cut in work.cuts:
            if start < cut.position <= end:
                state = (int(digests[cut.position - start - 1]), (count + cut.position - start) & _MASK)
                memory.arenas[Tier.DEVICE][cut.pages] = memory.pack(state, len(cut.pages))
        memory.live[work.slot] = (int(digests[-1]), (count + len(tokens)) & _MASK)

    def _read(self, pages: Ints, count: int) -> Words:
        """Cells of positions [0, count), [count, LAYERS]."""
        view = self._memory.arenas[Tier.DEVICE].reshape(-1, self._block, LAYERS)
        return view[pages].reshape(-1, LAYERS)[:count]
