"""The events of a message, one delivery at a time."""

from __future__ import annotations

import json

import numpy as np

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.engine.text.detokenizer import ByteDecoder, Transcript
from stepwell.sched.request import Request, SamplingParams
from stepwell.server.generation.answers import Delivery
from stepwell.server.generation.choice import Choice
from stepwell.server.generation.generate import Piece
from stepwell.server.messages.events import MessagesForm
from stepwell.server.write.deltas import Said


def test_a_message_starts_once_it_is_known_what_its_prompt_found_in_the_cache() -> None:
    request = Request("r", np.arange(10, dtype=np.int32), SamplingParams())
    choice = Choice(0, request, Transcript(ByteDecoder([b"a"] * 10)), None)
    form = MessagesForm("msg_1", "tiny")
    assert form.events(Piece(choice, *choice.take(Delivery(loads_at=1.0)), False, None)) == []

    outcome = AdmissionOutcome("r", 10, 0, 8, 0, 2, 8, 8, Tier.HOST, Reason.COMPLETE, ())
    start, ping = form.events(Piece(choice, *choice.take(Delivery(outcome=outcome)), False, None))
    usage = json.loads(start.partition(b"data: ")[2])["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (2, 8)
    assert ping.startswith(b"event: ping")
    assert len(form.events(Piece(choice, [Said("a")], [], [1], True, None))) == 2
