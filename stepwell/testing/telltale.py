"""A model that gives every cache fault away, in microseconds and without tensors.

Its state is a rolling digest of everything it has read; each KV cell is a digest of (root, tokens so far, layer) and fills
the page's whole stride; the next token is a digest of the state and of every KV cell up to here. A byte that is missing, stale,
shifted, foreign or doubled anywhere changes the next token and all that follow. There is no tolerance. Each rank has its own
state and cells, and the next token depends on all ranks'.

    answer   what a cold run must say, computed without engine, pages or cache
    content  what a cache of a prompt must hold, byte for byte
    Memory   device, host and live states of one rank as plain arrays; copies between them
    TellTaleRunner   a `Runner` over the memory of every rank
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Geometry, Ints
from stepwell.cache.disk.names import root_number
from stepwell.cache.moves import LiveState, Move, Tier
from stepwell.sched.step import LAST_DRAW, Done, Fresh, FromImage, Logits, Step, StepResult, Work

Words = npt.NDArray[np.uint64]

LAYERS = 2
POISON = np.uint64(0xDEADDEADDEADDEAD)
UNDRAWN = -2
"""Stands for the last draw of a slot from which nothing has been drawn: no vocabulary has it."""
_MULTIPLIER = 0x9E3779B97F4A7C15 | 1
_MASK = (1 << 64) - 1
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part a rank holds of every state, and of every KV cell. States differ on all ranks; KV may be the same on several, as
    where there are fewer KV heads than ranks."""

    state: int = 0
    kv: int = 0

    @property
    def mask(self) -> np.uint64:
        """The rank's states are digests in this mask: another rank's state, unmasked, is no digest of anything. 0 on rank 0."""
        return np.uint64(self.state * 0x8CB92BA72F3D8DD7 & _MASK)


ALONE = (Shard(),)
"""The one rank of an engine that has no others."""


def shards(ranks: int, same_kv: bool = False) -> tuple[Shard, ...]:
    """One shard for each rank; with `same_kv` all hold the same KV."""
    return tuple(Shard(rank, 0 if same_kv else rank) for rank in range(ranks))


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


def _cells(digests: Words, kv: int = 0) -> Words:
    """KV of each token in each layer, [n, LAYERS], in this shard of it."""
    layers = np.arange(1, LAYERS + 1, dtype=np.uint64) + np.uint64(kv * LAYERS)
    return _mix(digests[:, None] + layers * np.uint64(0xD6E8FEB86659FD93))


def _sums(rows: Words) -> Words:
    """A checksum of each row: depends on every word at its own place."""
    places = np.arange(rows.shape[1], dtype=np.uint64) * np.uint64(0xA0761D6478BD642F)
    return np.asarray(np.bitwise_xor.reduce(_mix(rows + places), axis=1), np.uint64)


def _read_out(digest: int, count: int, cells: Words, rank: int) -> int:
    """What one rank adds to the choice of the next token: depends on its state, and on every cell at its own place."""
    places = np.arange(cells.size, dtype=np.uint64).reshape(cells.shape)
    read = int(np.bitwise_xor.reduce(_mix(cells + places * np.uint64(0xA0761D6478BD642F)), axis=None))
    word = np.array([(read * _MULTIPLIER + digest + count + rank * 0xA24BAED4963EE407) & _MASK], np.uint64)
    return int(_mix(word)[0])


def _choose(read_outs: Sequence[int], vocab: int) -> int:
    """The next token: as after an all-reduce, it depends on what every rank has read."""
    return int(np.bitwise_xor.reduce(np.array(read_outs, np.uint64)) % np.uint64(vocab))


def _logits(read_outs: Sequence[int]) -> Logits:
    """What stands for logits here: the 16-bit parts of the word that the next token is chosen by. Equal or wrong."""
    word = int(np.bitwise_xor.reduce(np.array(read_outs, np.uint64)))
    return np.array([word >> shift & 0xFFFF for shift in (0, 16, 32, 48)], np.float32)


def answer(prompt: Ints, count: int, vocab: int, salt: str = "", ranks: Sequence[Shard] = ALONE) -> list[int]:
    """The `count` tokens that follow `prompt` under `salt`, as a cold run on these ranks gives them."""
    tokens = np.asarray(prompt, np.int32)
    out: list[int] = []
    digests = _fold(_seed(root_number(salt)), tokens)
    for _ in range(count):
        last, here = int(digests[-1]), len(digests)
        out.append(_choose([_read_out(last, here, _cells(digests, r.kv), r.state) for r in ranks], vocab))
        digests = np.concatenate([digests, _fold(int(digests[-1]), np.array(out[-1:], np.int32))])
    return out


def content(tokens: Ints, salt: str = "", shard: Shard = ALONE[0]) -> tuple[Words, Words]:
    """What a rank's cache of `tokens` under `salt` must hold: states after each token, uint64 [n], and KV, uint64 [n, LAYERS]."""
    digests = _fold(_seed(root_number(salt)), np.asarray(tokens, np.int32))
    return digests ^ shard.mask, _cells(digests, shard.kv)


def blank(salt: str = "", shard: Shard = ALONE[0]) -> int:
    """A rank's state after the empty prefix of `salt`."""
    return _seed(root_number(salt)) ^ int(shard.mask)


def geometry(block: int = 4, rung_grid: int = 8, image_pages: int = 2) -> Geometry:
    """The tell-tale's sizes: a page is `block` cells of LAYERS words."""
    page_bytes = block * LAYERS * 8
    return Geometry(block, rung_grid, page_bytes, image_pages * page_bytes)


class Memory:
    """One rank's slots of every tier, [slots, words of a page], and live states, [slots, (masked digest, tokens folded)].

    Slots of the disk, and of host with `checked`, have a checksum, taken of what a copy writes and compared as a copy reads.
    The device has a page and a live state more than it is asked for, the last ones: what pads a batch computes on these.
    """

    def __init__(
        self,
        sizes: Geometry,
        device_pages: int,
        host_slots: int,
        live_slots: int,
        shard: Shard = ALONE[0],
        disk_slots: int = 0,
        checked: bool = True,
    ) -> None:
        self.shard = shard
        self.words = sizes.block * LAYERS
        self.arenas = {
            Tier.DEVICE: np.full((device_pages + 1, self.words), POISON, np.uint64),
            Tier.HOST: np.full((host_slots, self.words), POISON, np.uint64),
            Tier.DISK: np.full((disk_slots, self.words), POISON, np.uint64),
        }
        self.sums = {tier: _sums(self.arenas[tier]) for tier in ((Tier.HOST, Tier.DISK) if checked else (Tier.DISK,))}
        self.live = np.full((live_slots + 1, 2), POISON, np.uint64)

    def copy(self, move: Move) -> None:
        """Carry out one move. StoreError, and nothing is copied, where a checksum fails."""
        tier, slots = move.source.tier, move.source.slots
        if not self.intact(tier, slots):
            raise StoreError(f"slots {slots.tolist()} of {tier.name.lower()} fail their checksums")
        rows = self.arenas[tier][slots]
        if isinstance(move.target, LiveState):
            self.live[move.target.slot] = self.unpack(rows)
        else:
            self.write(move.target.tier, move.target.slots, rows)

    def write(self, tier: Tier, slots: Ints, rows: Words | np.uint64) -> None:
        """Set what these slots hold, checksums included."""
        self.arenas[tier][slots] = rows
        if tier in self.sums:
            self.sums[tier][slots] = _sums(self.arenas[tier][slots])

    def intact(self, tier: Tier, slots: Ints) -> bool:
        """Whether these slots hold what was last written to them, as far as checksums tell."""
        return tier not in self.sums or bool((self.sums[tier][slots] == _sums(self.arenas[tier][slots])).all())

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

    def wipe(self) -> None:
        """The process is gone: nothing is left in any memory of it."""
        for tier, arena in self.arenas.items():
            self.poison(tier, np.arange(len(arena), dtype=np.int32))
        self.live[:] = POISON

    def poison(self, tier: Tier, slots: Ints) -> None:
        """Overwrite slots that nobody may read any more."""
        if tier in self.arenas:
            self.write(tier, slots, POISON)


class TellTaleRunner:
    """Computes steps exactly as told, faults included, on every rank; raises only where a work contradicts itself.

    Of what it drafts, about `acceptance` of a hundred tokens are right.

    draws  the last draw from each live slot
    """

    def __init__(
        self,
        memory: Memory,
        sizes: Geometry,
        vocab: int = 1000,
        others: Sequence[Memory] = (),
        acceptance: int = 60,
    ) -> None:
        self.vocab = vocab
        self.acceptance = acceptance
        self.draws = np.full(len(memory.live), UNDRAWN, np.int32)
        self._ranks = (memory, *others)
        self._block = sizes.block
        self._drafted: set[int] = set()  # slots whose last step drafted behind its draw

    def launch(self, step: Step) -> Done:
        """Computes at once; decodes in batches of 1, 2, 4, 8 …, as a device does that has a graph for each size."""
        decodes = len(step.decodes)
        size = 1 << (decodes - 1).bit_length() if decodes else 0
        spare = len(self._ranks[0].live) - 1, len(self._ranks[0].arenas[Tier.DEVICE]) - 1
        batch = step.decodes.padded(size, *spare).works()
        works = (*batch, *step.parts)
        for memory in self._ranks:
            for work in works:
                self._start(memory, work)
        ran = [self._run(work) for work in works]
        self._drafted -= {work.slot for work in works}
        if step.drafting:
            self._drafted |= {work.slot for work in works if work.sample is not None}
        del ran[decodes : len(batch)]
        kept = [i for i, work in enumerate(step.works) if work.sample is not None and work.sample.keep_logits]
        return Done(StepResult(tuple(tokens for tokens, _ in ran), logits=tuple((i, _logits(ran[i][1])) for i in kept)))

    def _start(self, memory: Memory, work: Work) -> None:
        if isinstance(work.state, Fresh):
            memory.live[work.slot] = (_seed(work.root) ^ int(memory.shard.mask), 0)
        elif isinstance(work.state, FromImage):
            memory.live[work.slot] = memory.unpack(memory.arenas[Tier.DEVICE][work.state.pages])

    def _run(self, work: Work) -> tuple[tuple[int, ...], list[int]]:
        """The tokens of one work, if it samples, and what the ranks have read for the first."""
        tokens = np.where(work.tokens == LAST_DRAW, self.draws[work.slot], work.tokens)
        for memory in self._ranks:
            self._forward(memory, work, tokens, work.start)
        if work.sample is None:
            return (), []
        first = self._read_all(work, work.end)
        drawn = [_choose(first, self.vocab)]
        self._verify(work, drawn)
        self.draws[work.slot] = drawn[-1]
        return tuple(drawn), first

    def _verify(self, work: Work, drawn: list[int]) -> None:
        """Compute the drafts behind `drawn`, the draw of a work, and draw behind those that are right. The live states fold no other,
        but cells are written of all, and images left."""
        assert not work.drafts or work.slot in self._drafted, (
            f"slot {work.slot} has {work.drafts} drafts that nobody made"
        )
        states, right = [memory.live[work.slot].copy() for memory in self._ranks], True
        for position in range(work.end, work.reach):
            right = right and (drawn[-1] * 40503 + position * 30011 >> 4) % 100 < self.acceptance
            draft = np.array([drawn[-1] if right else (drawn[-1] + 1) % self.vocab], np.int32)
            for memory in self._ranks:
                self._forward(memory, work, draft, position)
            if right:
                drawn.append(_choose(self._read_all(work, position + 1), self.vocab))
                states = [memory.live[work.slot].copy() for memory in self._ranks]
        for memory, state in zip(self._ranks, states, strict=True):
            memory.live[work.slot] = state

    def _forward(self, memory: Memory, work: Work, tokens: Ints, start: int) -> None:
        """Fold the tokens, write their cells, leave images at the cuts."""
        shard = memory.shard
        digest, count = _unmasked(memory, work.slot)
        digests = _fold(digest, tokens)
        states = digests ^ shard.mask
        end = start + len(tokens)
        positions = np.arange(start, end)
        written = positions >= work.write_from
        pages = work.pages[positions[written] // self._block]
        view = memory.arenas[Tier.DEVICE].reshape(-1, self._block, LAYERS)
        view[pages, positions[written] % self._block] = _cells(digests, shard.kv)[written]
        for cut in work.cuts:
            if start < cut.position <= end:
                state = (int(states[cut.position - start - 1]), (count + cut.position - start) & _MASK)
                memory.arenas[Tier.DEVICE][cut.pages] = memory.pack(state, len(cut.pages))
        memory.live[work.slot] = (int(states[-1]), (count + len(tokens)) & _MASK)

    def _read_all(self, work: Work, count: int) -> list[int]:
        """Each rank's part in the choice after `count` tokens."""
        return [self._read(memory, work, count) for memory in self._ranks]

    def _read(self, memory: Memory, work: Work, count: int) -> int:
        """A rank's part in the choice after `count` tokens: of its live state, and of the cells of positions [0, count)."""
        view = memory.arenas[Tier.DEVICE].reshape(-1, self._block, LAYERS)
        cells = view[work.pages].reshape(-1, LAYERS)[:count]
        return _read_out(*_unmasked(memory, work.slot), cells, memory.shard.state)


def _unmasked(memory: Memory, slot: int) -> tuple[int, int]:
    """(digest, count) of a live state."""
    digest, count = memory.live[slot]
    return int(digest ^ memory.shard.mask), int(count)
