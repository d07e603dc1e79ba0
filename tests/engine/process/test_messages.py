"""What is sent is what arrives."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from stepwell.base.errors import CapacityError, RequestError
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.explain import Explanation, PlannedStart
from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss, Reason
from stepwell.engine.config import EngineConfig, EngineFacts
from stepwell.engine.process import messages
from stepwell.sched.outlook import Outlook
from stepwell.sched.request import Admitted, Event, Finished, Request, SamplingParams, Tokens

OUTCOME = AdmissionOutcome(
    "a", 40, 16, 0, 0, 24, 16, 16, Tier.HOST, Reason.LOAD_FAILED_KV, ((Loss.NEW, 20), (Loss.FAILED_LEG, 4)), 17
)


def test_request_survives_the_journey() -> None:
    params = SamplingParams(None, 0.5, 0.9, 4, 2**63 - 1, 2, (1, 5), True)
    request = Request(
        "a", np.array([0, 7, 2**31 - 1], np.int32), params, "salt", False, False, "s", priority=-7, places=(64, 128)
    )
    arrived = messages.decode_command(messages.encode(messages.submit_of(request)))
    assert isinstance(arrived, messages.Submit)
    copy = messages.request_of(arrived)
    assert np.array_equal(copy.prompt, request.prompt) and copy.prompt.dtype == np.int32
    assert messages.submit_of(copy) == messages.submit_of(request) and copy.priority == -7
    assert copy.places == (64, 128)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Admitted("a", OUTCOME), messages.Admitted("a", OUTCOME)),
        (Tokens("a", (1, 2)), messages.Tokens("a", [1, 2])),
        (Finished("a", "error", "why"), messages.Finished("a", "error", "why")),
    ],
)
def test_events_survive_the_journey(event: Event, expected: messages.WireEvent) -> None:
    stats = messages.Stats(queues={"waiting": 1}, pages={"device": {"free": 2}}, joint="joint: …")
    batch = messages.Batch([messages.wire_event(event)], stats)
    assert messages.decode_answer(messages.encode(batch)) == messages.Batch([expected], stats)


def test_refusals_arrive_as_the_errors_they_were() -> None:
    capacity = messages.rejection_error(messages.rejection("a", CapacityError("too large", 9, 4)))
    assert isinstance(capacity, CapacityError) and (capacity.needed, capacity.available) == (9, 4)
    fault = messages.rejection_error(messages.rejection("a", RequestError("wrong", "prompt")))
    assert isinstance(fault, RequestError) and (str(fault), fault.param) == ("wrong", "prompt")


def test_config_and_facts_survive_the_journey() -> None:
    start = messages.Start(EngineConfig("m", min_load_tokens=5), "a:b", "/tmp/x", 30)
    assert msgspec.json.decode(msgspec.json.encode(start), type=messages.Start) == start
    ready = messages.Ready(EngineFacts("m", 10, 20, (("pages", "1", ""),), phases=(("importing", 1.5),)))
    assert messages.decode_answer(messages.encode(ready)) == ready


def test_answers_about_the_cache_survive_the_journey() -> None:
    start = PlannedStart(40, 20, "host", (("host", 20, 40),))
    told = Explanation(48, 40, 20, 40, 20, ((20, "device"),), (30,), 41, (start,), 7, None, OUTCOME, 36)
    expected = Outlook(48, 40, Tier.HOST, 0.25, 0.5, 0.125, 3)
    for reply in (messages.Explained(5, told), messages.Expected(5, expected), messages.WasReset(6, {"device": 3})):
        assert messages.decode_answer(messages.encode(reply)) == reply
    for command in (messages.Explain(5, b"\0\0\0\0", "salt", True), messages.Reset(6, None), messages.Reset(7, "")):
        assert messages.decode_command(messages.encode(command)) == command


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\xa6submit\x01\x02", b"\x92\xa7unknown\x01", b"\x00" * 100])
def test_noise_is_no_message(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode_command(data)
