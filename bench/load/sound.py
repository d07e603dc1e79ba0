"""Are the answers of a load those of the model? Some of them are computed anew, alone, and held against what came.

Speed says nothing of answers: a server whose decodes read the wrong memory is as fast as any. Equal tokens cannot be asked for, since
rounding turns an answer of random weights within some tokens. But a token that the model itself put there is near the model's first choice
when the same text is computed in one pass, and one out of garbage as far behind as any word of the vocabulary. How far that is differs
from model to model, so some words drawn at random are scored behind each answer: they are 1, the first choice is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from load.client import VOCAB, CallFailed, Client, Reply, drawn

FAR = 0.75
"""On that scale, over an answer. Rounding alone goes a good part of the way through forty layers of random experts: of 256 tokens that M
gave under load 3.5 % were its first choice anew, and the worst was 4.2 nats behind it."""
RANDOM = 8
"""Words drawn at random behind each answer."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and what was answered to it."""

    prompt: list[int]
    reply: Reply


def spread(samples: list[Sample], count: int) -> list[Sample]:
    """`count` of them, from the first to the last."""
    places = np.linspace(0, len(samples) - 1, min(count, len(samples)))
    return [samples[int(place)] for place in places]


async def sound(client: Client, samples: list[Sample], vocab: int = VOCAB) -> dict[str, Any]:
    """Share of tokens that are the model's first choice when computed anew; nats that they are behind it on average, over the worst answer,
    and that words at random are; share of answers that are `FAR` behind, which are garbage. `{"unscored": why}` where the server scores no
    prompts. Asks one after the other."""
    distinct = {token for sample in samples for token in sample.reply.tokens}
    rng, own, foreign = np.random.default_rng(0), list[np.ndarray](), list[np.ndarray]()
    try:
        for sample in samples:
            answer = list(sample.reply.tokens)
            behind = np.array(await client.behind(sample.prompt, answer + drawn(rng, RANDOM, vocab)))
            own.append(behind[: len(answer)])
            foreign.append(behind[len(answer) :])
    except CallFailed as refusal:
        return {"distinct": len(distinct), "unscored": str(refusal)[:80]}
    every, random = np.concatenate(own), float(np.concatenate(foreign).mean())
    means = np.array([one.mean() for one in own])
    return {
        "tokens": len(every),
        "distinct": len(distinct),
        "first": float((every == 0).mean()),
        "behind_nats": float(every.mean()),
        "worst_nats": float(means.max()),
        "random_nats": random,
        "garbage": float((~(means < FAR * random)).mean()),
    }
