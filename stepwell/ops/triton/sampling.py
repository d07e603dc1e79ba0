"""From logits to tokens on the device, for a whole batch, without sorting and without a word to the host.

A row's token depends on its own logits, settings, seed and index alone. Of the tokens that top-k, min-p and top-p leave, the
one wins that comes first in a race of exponential times: argmin E(token) / chance(token) is a draw from the chances. E is
made from Philox (Salmon et al., 2011) with the seed as its key and (token, index) as its counter.

Thresholds are found digit by digit, four bits of the ordered logit at a time (radix selection): each pass counts, or weighs,
the tokens of every next digit in chunks of the vocabulary. 16-bit logits take four passes, float32 eight. Tokens that equal
the last one kept are kept too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.triton.overlap import follow, overlap

CHUNK = 4096
_BINS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """How each row's token is chosen, [rows].

    temperature   float32; 0: the likeliest token, equal ones by number
    top_k         int32; 0: all
    top_p, min_p  float32; 1 and 0: all
    seed, index   int64; `index` counts the request's earlier draws
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    index: Tensor


@triton.jit
def _ordered(x):
    """float32 as an unsigned number of the same order."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) == 1, ~bits, bits | 0x80000000)


@triton.jit
def _chunk_of(logits, row_stride, VOCAB, SIZE: tl.constexpr):
    token = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    row = tl.program_id(1).to(tl.int64)
    x = tl.load(logits + row * row_stride + token, mask=token < VOCAB, other=float("-inf"))
    return token, x.to(tl.float32)


@triton.jit
def _peak_kernel(logits, row_stride, VOCAB, peaks, tokens, SIZE: tl.constexpr, OVERLAP: tl.constexpr):
    follow(OVERLAP)
    _, x = _chunk_of(logits, row_stride, VOCAB, SIZE)
    place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    # NaN would hide in a maximum: it counts as more than any number, and the row has no sound peak
    x = tl.where(x == x, x, float("inf"))
    peak, at = tl.max(x, 0, return_indices=True)
    tl.store(peaks + place, peak)
    tl.store(tokens + place, tl.program_id(0) * SIZE + at)


@triton.jit
def _row_peak(peaks, chunks, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    return tl.max(tl.load(peaks + tl.program_id(1) * chunks + c, mask=c < chunks, other=float("-inf")), 0)


@triton.jit
def _resolve(weighed, chunks, wanted, BLOCK: tl.constexpr):
    """The next digit of a threshold and what is still wanted below it, from the last pass' weights by digit.

    `wanted` < 0 asks for −wanted of the whole weight.
    """
    c, d = tl.arange(0, BLOCK), tl.arange(0, 16)
    at = weighed + (tl.program_id(1) * chunks + c)[:, None] * 16 + d[None, :]
    weight = tl.sum(tl.load(at, mask=(c < chunks)[:, None], other=0.0), 0)
    wanted = tl.where(wanted < 0, -wanted * tl.sum(weight, 0), wanted)
    least = tl.min(tl.where(weight > 0, d, 15), 0)
    # how much stands at each digit and above it
    above = tl.sum(tl.where(d[None, :] >= d[:, None], weight[None, :], 0.0), 1)
    digit = tl.maximum(tl.max(tl.where(above >= wanted, d, 0), 0), least)
    return digit, wanted - tl.sum(tl.where(d > digit, weight, 0.0), 0)


@triton.jit
def _threshold(weighed, prefixes, wants, chunks, PASS: tl.constexpr, DIGITS: tl.constexpr, BLOCK: tl.constexpr):
    """Digits found before pass PASS, and what is wanted in it. Each search starts afresh after DIGITS passes."""
    row, rows = tl.program_id(1), tl.num_programs(1)
    last = (PASS - 1) * rows
    digit, wanted = _resolve(weighed + last * chunks * 16, chunks, tl.load(wants + last + row), BLOCK)
    prefix = digit.to(tl.uint32)
    if (PASS - 1) % DIGITS > 0:
        prefix = tl.load(prefixes + last + row).to(tl.uint32) * 16 + prefix
    return prefix, wanted


@triton.jit
def _kept_chances(x, peak, temperature, min_p):
    """exp((x − peak) / temperature), 0 below min-p of the likeliest token."""
    scaled = (x - peak) / temperature
    return tl.where(scaled >= tl.log(tl.maximum(min_p, 1e-37)), tl.exp(scaled), 0.0)


@triton.jit
def _pass_kernel(
    logits, row_stride, VOCAB, peaks, temperature, top_k, top_p, min_p, weighed, prefixes, wants, floors,
    PASS: tl.constexpr, DIGITS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, rows, chunks = tl.program_id(1), tl.num_programs(1), tl.num_programs(0)
    heat, most, share = tl.load(temperature + row), tl.load(top_k + row), tl.load(top_p + row)
    counts: tl.constexpr = PASS < DIGITS
    if heat > 0 and ((counts and most > 0) or (not counts and share < 1.0)):
        prefix, wanted = tl.full([], 0, tl.uint32), most.to(tl.float32)
        if not counts:
            wanted = -share
        floor = tl.full([], 0, tl.uint32)
        if PASS % DIGITS > 0:
            prefix, wanted = _threshold(weighed, prefixes, wants, chunks, PASS, DIGITS, BLOCK)
        if PASS == DIGITS and most > 0:
            floor, _ = _threshold(weighed, prefixes, wants, chunks, PASS, DIGITS, BLOCK)
        if PASS > DIGITS:
            floor = tl.load(floors + row).to(tl.uint32)
        if tl.program_id(0) == 0:
            tl.store(prefixes + PASS * rows + row, prefix.to(tl.int64))
            tl.store(wants + PASS * rows + row, wanted)
            tl.store(floors + row, floor.to(tl.int64))
        peak = _ordered(tl.load(peaks + row * chunks + tl.program_id(0))) >> (32 - 4 * DIGITS)
        step: tl.constexpr = PASS % DIGITS
        place = weighed + ((PASS * rows + row) * chunks + tl.program_id(0)) * 16
        if (peak >= floor) & ((peak >> (4 * (DIGITS - step - 1)) >> 4) >= prefix):
            token, x = _chunk_of(logits, row_stride, VOCAB, SIZE)
            key = _ordered(x) >> (32 - 4 * DIGITS)
            weight = tl.full([SIZE], 1.0, tl.float32)
            if not counts:
                weight = _kept_chances(x, _row_peak(peaks, chunks, BLOCK), heat, tl.load(min_p + row))
            fits = (token < VOCAB) & (key >= floor) & ((key >> (4 * (DIGITS - step - 1)) >> 4) == prefix)
            digit = (key >> (4 * (DIGITS - 1 - step))) & 15
            for d in tl.static_range(16):
                tl.store(place + d, tl.sum(tl.where(fits & (digit == d), weight, 0.0), 0))
        else:
            tl.store(place + tl.arange(0, 16), tl.zeros([16], tl.float32))


@triton.jit
def _race_kernel(
    logits, row_stride, VOCAB, peaks, temperature, top_k, top_p, min_p, seed, index, weighed, prefixes, wants, floors,
    scores, tokens, DIGITS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, chunks = tl.program_id(1), tl.num_programs(0)
    heat, most, share = tl.load(temperature + row), tl.load(top_k + row), tl.load(top_p + row)
    floor = tl.full([], 0, tl.uint32)
    if heat > 0:
        if share < 1.0:
            floor, _ = _threshold(weighed, prefixes, wants, chunks, 2 * DIGITS, DIGITS, BLOCK)
        else:
            if most > 0:
                floor, _ = _threshold(weighed, prefixes, wants, chunks, DIGITS, DIGITS, BLOCK)
    place = row * chunks + tl.program_id(0)
    if _ordered(tl.load(peaks + place)) >> (32 - 4 * DIGITS) >= floor:
        token, x = _chunk_of(logits, row_stride, VOCAB, SIZE)
        score = x
        if heat > 0:
            number = token.to(tl.uint32)
            turn, zero = tl.load(index + row).to(tl.uint32), number * 0
            bits, _, _, _ = tl.philox(tl.load(seed + row), number, turn, zero, zero)
            w = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
            # −log(1 − w), exact to rounding where w is small
            time = tl.where(w < 1e-3, w * (1.0 + w * (0.5 + w / 3.0)), -tl.log(tl.maximum(1.0 - w, 5e-8)))
            peak = _row_peak(peaks, chunks, BLOCK)
            kept = (_ordered(x) >> (32 - 4 * DIGITS)) >= floor
            kept = kept & (_kept_chances(x, peak, heat, tl.load(min_p + row)) > 0)
            score = tl.where(kept, (x - peak) / heat - tl.log(time), float("-inf"))
        best, at = tl.max(score, 0, return_indices=True)
        tl.store(scores + place, best)
        tl.store(tokens + place, tl.program_id(0) * SIZE + at)
    else:
        tl.store(scores + place, float("-inf"))


@triton.jit
def _pick_kernel(peaks, scores, tokens, out, chunks, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    place, mask = row * chunks + c, c < chunks
    follow(OVERLAP)
    peak = tl.max(tl.load(peaks + place, mask=mask, other=float("-inf")), 0)
    _, at = tl.max(tl.load(scores + place, mask=mask, other=float("-inf")), 0, return_indices=True)
    token = tl.load(tokens + row * chunks + at)
    tl.store(out + row, tl.where((peak > float("-inf")) & (peak < float("inf")), token, -1))


def greedy(logits: Tensor, chunk: int = CHUNK) -> Tensor:
    """The likeliest token of each row, int64 [rows]; equal ones by number; −1 where a row's largest logit is not finite.

    logits   [rows, vocab], bfloat16, float16 or float32; rows may be strided
    """
    peaks, tokens = _peaks(logits, chunk)
    return _pick(peaks, peaks, tokens)


def sample(logits: Tensor, settings: Settings, chunk: int = CHUNK) -> Tensor:
    """One token for each row, int64 [rows]; −1 where a row's largest logit is not finite.

    logits   [rows, vocab], bfloat16 or float32; rows may be strided

    Passes that no row needs cost a launch and nothing else.
    """
    rows, vocab = logits.shape
    digits = 4 if logits.dtype == torch.bfloat16 else 8
    peaks, tokens = _peaks(logits, chunk)
    chunks = peaks.shape[1]
    weighed = peaks.new_empty(2 * digits, rows, chunks, _BINS)
    wants, prefixes = peaks.new_empty(2 * digits, rows), tokens.new_empty(2 * digits, rows)
    floors, scores = tokens.new_empty(rows), torch.empty_like(peaks)
    s, block = settings, triton.next_power_of_2(chunks)
    head = (logits, logits.stride(0), vocab, peaks, s.temperature, s.top_k, s.top_p, s.min_p)
    found = (weighed, prefixes, wants, floors)
    for step in range(2 * digits):
        _pass_kernel[(chunks, rows)](*head, *found, PASS=step, DIGITS=digits, SIZE=chunk, BLOCK=block, num_warps=4)
    _race_kernel[(chunks, rows)](
        *head, s.seed, s.index, *found, scores, tokens, DIGITS=digits, SIZE=chunk, BLOCK=block, num_warps=4
    )
    return _pick(peaks, scores, tokens)


def _peaks(logits: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    rows, vocab = logits.shape
    chunks = triton.cdiv(vocab, chunk)
    peaks = torch.empty(rows, chunks, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, chunks, dtype=torch.int64, device=logits.device)
    _peak_kernel[(chunks, rows)](
        logits, logits.stride(0), vocab, peaks, tokens, SIZE=chunk, num_warps=4, **overlap(logits, rows)
    )
    return peaks, tokens


def _pick(peaks: Tensor, scores: Tensor, tokens: Tensor) -> Tensor:
    rows, chunks = peaks.shape
    out = torch.empty(rows, dtype=torch.int64, device=peaks.device)
    _pick_kernel[(rows,)](
        peaks, scores, tokens, out, chunks, BLOCK=triton.next_power_of_2(chunks), num_warps=1, **overlap(peaks, rows)
    )
    return out
