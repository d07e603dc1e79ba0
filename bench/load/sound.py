"""Are the answers of a load those of the model? Some of them are computed anew, alone, and held against what came.

Speed says nothing of answers: a server whose decodes read the wrong memory is as fast as any. Equal tokens cannot be asked for, since
rounding turns an answer of random weights within some tokens. But a token that the model itself put there leads, or nearly leads, when the
same text is computed in one pass, and one drawn from garbage is as far behind as any of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from load.client import CallFailed, Client, Reply

FAR = 4.0
"""Nats. Rounding in bfloat16 turned tokens that were up to 1.1 behind the first; a token drawn at random is some 15 behind."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and what was answered to it."""

    prompt: list[int]
    reply: Reply


def spread(samples: list[Sample], count: int) -> list[Sample]:
    """`count` of them, from the first to the last."""
    places = np.linspace(0, len(samples) - 1, min(count, len(samples)))
    return [samples[int(place)] for place in places]


async def sound(client: Client, samples: list[Sample]) -> dict[str, Any]:
    """Share of tokens that lead when computed anew, nats behind the first at most, share that are `FAR` behind (garbage, if not 0), and
    distinct tokens over all; `{"unscored": why}` where the server scores no prompts. Asks one after the other."""
    distinct = {token for sample in samples for token in sample.reply.tokens}
    behind: list[float] = []
    try:
        for sample in samples:
            behind += await client.lead(sample.prompt, list(sample.reply.tokens))
    except CallFailed as refusal:
        return {"distinct": len(distinct), "unscored": str(refusal)[:80]}
    found = np.array(behind)
    return {
        "tokens": len(found),
        "distinct": len(distinct),
        "lead": float((found == 0).mean()),
        "behind_nats": float(found.max()),
        "garbage": float((~(found < FAR)).mean()),
    }
