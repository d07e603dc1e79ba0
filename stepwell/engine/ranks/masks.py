"""What grammars allow, sent along with a step: control works it out, ranks only look it up."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from stepwell.base.geometry import Ints
from stepwell.engine.compute.sampler import Masks
from stepwell.engine.grammar.guide import Allowed
from stepwell.engine.grammar.vocabulary import GuideError
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Step


class Mask(msgspec.Struct, array_like=True):
    """Of one request: a bit for each word, None where all are allowed; or why there is none."""

    name: str
    bits: bytes | None
    fault: str


_ENCODER = msgspec.msgpack.Encoder()
_MASKS = msgspec.msgpack.Decoder(list[Mask])


def write_masks(step: Step, masks: Masks) -> bytes:
    """What may follow the answers of `step` that are held to a grammar; empty where none is."""
    found = [_mask(*held, masks) for held in _held(step)]
    return _ENCODER.encode(found) if found else b""


def _held(step: Step) -> Iterator[tuple[str, SamplingParams, Ints]]:
    """Name, params and answer so far of those."""
    decodes = step.decodes
    for row, history in decodes.histories:
        if decodes.params[row].grammar:
            yield decodes.names[row], decodes.params[row], history[len(history) - int(decodes.indices[row]) :]
    for work in step.parts:
        sample = work.sample
        if sample is not None and sample.params.grammar and sample.history is not None:
            yield work.request_id, sample.params, sample.history[len(sample.history) - sample.index :]


def _mask(name: str, params: SamplingParams, answer: Ints, masks: Masks) -> Mask:
    try:
        allowed = masks.allowed(name, params, answer)
    except GuideError as error:
        return Mask(name, None, str(error))
    return Mask(name, None if allowed is None else np.packbits(allowed, bitorder="little").tobytes(), "")


class SentMasks:
    """The `Masks` of a rank: those of the step that it is about to launch."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._masks: dict[str, Mask] = {}

    def take(self, data: bytes) -> None:
        """A step comes with these. Raises msgspec.DecodeError."""
        self._masks = {mask.name: mask for mask in _MASKS.decode(data)} if data else {}

    def allowed(self, request_id: str, params: SamplingParams, answer: Ints) -> Allowed | None:
        mask = self._masks[request_id]
        if mask.fault:
            raise GuideError(mask.fault)
        if mask.bits is None:
            return None
        bits = np.frombuffer(mask.bits, np.uint8)
        return np.unpackbits(bits, bitorder="little", count=self._vocab).view(np.bool_)
