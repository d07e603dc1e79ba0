"""A reader that knows vLLM's published form alone hears of every change, and gets again what it has missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from stepwell.base.clock import WallClock
from stepwell.base.errors import ConfigError
from stepwell.cache.changes import Change, chain
from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.engine.events.form import cleared, encoded
from stepwell.engine.events.publisher import Publisher
from stepwell.engine.owned import OwnedLoop
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing.faults import InstantMover
from stepwell.testing.telltale import Memory, TellTaleRunner, geometry

BLOCK = 16


class BlockStored(msgspec.Struct, tag=True):
    """As the form is documented; fields that a reader does not know it passes over."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(Batch)


class Reader:
    """Subscribes, and asks for what it has missed."""

    def __init__(self, folder: Path, topic: str = "") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.heard = self._context.socket(zmq.SUB)
        self.heard.connect(f"ipc://{folder}/events")
        self.heard.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.replay = self._context.socket(zmq.DEALER)
        self.replay.connect(f"ipc://{folder}/replay")
        for socket in (self.heard, self.replay):
            socket.rcvtimeo = 20_000

    def next(self) -> tuple[bytes, int, Batch]:
        topic, number, batch = self.heard.recv_multipart()
        return topic, int.from_bytes(number, "big"), DECODER.decode(batch)

    def missed(self, first: int) -> list[tuple[int, Batch]]:
        """From number `first` on."""
        self.replay.send_multipart((b"", first.to_bytes(8, "big")))
        found = []
        while True:
            _, _, number, batch = self.replay.recv_multipart()
            if number == (-1).to_bytes(8, "big", signed=True):
                return found
            found.append((int.from_bytes(number, "big"), DECODER.decode(batch)))

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    made = Publisher(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", "well")
    yield made
    made.close()


@pytest.fixture
def reader(tmp_path: Path, publisher: Publisher) -> Iterator[Reader]:
    made = Reader(tmp_path, "well")
    while not made.heard.poll(20):  # what is sent before a subscription has arrived is heard by nobody
        publisher.publish(cleared(0.0))
    yield made
    made.close()


def stored(
    tokens: list[int], above: bytes = b"", tier: Tier = Tier.DEVICE, rung: bool = False, salt: str = ""
) -> Change:
    raw = np.array(tokens, np.int32).tobytes()
    return Change(tier, rung, True, chain(above, raw, BLOCK, salt), above, raw, salt)


def test_blocks_have_the_names_and_fields_that_routers_read() -> None:
    first = stored(list(range(48)), salt="s")
    later = stored(list(range(16)), first.digests[-32:], Tier.HOST, rung=True)
    gone = Change(Tier.DISK, False, False, first.digests, b"", b"", "s")
    batch = DECODER.decode(encoded([first, later, gone], BLOCK, 5.0))
    a, b, c = batch.events
    assert batch.ts == 5.0 and batch.data_parallel_rank == 0
    assert isinstance(a, BlockStored) and isinstance(b, BlockStored) and isinstance(c, BlockRemoved)
    assert a.token_ids == list(range(48)) and a.block_size == BLOCK and a.parent_block_hash is None
    assert a.block_hashes == [int.from_bytes(first.digests[i : i + 32], "big") % 2**64 for i in (0, 32, 64)]
    assert a.extra_keys == [("s",), None, None]
    assert (a.medium, a.group_idx, a.kv_cache_spec_kind) == ("GPU", 0, "full_attention")
    assert (b.medium, b.group_idx, b.kv_cache_spec_kind) == ("CPU", 1, "mamba")
    assert b.parent_block_hash == a.block_hashes[-1] and b.extra_keys is None
    assert (c.block_hashes, c.medium, c.group_idx) == (a.block_hashes, "STORAGE", 0)


def test_batches_come_in_order_under_a_topic_and_can_be_asked_for_again(publisher: Publisher, reader: Reader) -> None:
    topic, last, batch = reader.next()
    assert topic == b"well" and batch.events == [AllBlocksCleared()]
    while reader.heard.poll(50):
        last = reader.next()[1]
    for i in range(5):
        publisher.publish(encoded([stored([i] * 16)], BLOCK, float(i)))
    heard = [reader.next()[1:] for _ in range(5)]
    assert [number for number, _ in heard] == [last + 1 + i for i in range(5)]
    assert reader.missed(last + 3) == heard[2:]
    assert [number for number, _ in reader.missed(0)] == list(range(last + 6))
    assert reader.missed(last + 100) == []


def test_a_publisher_that_nobody_hears_holds_up_nothing_and_counts_what_it_drops(tmp_path: Path) -> None:
    publisher = Publisher(f"ipc://{tmp_path}/events", None, "")
    held = publisher._push
    publisher._push = held.context.socket(zmq.PUSH)  # as where the thread takes nothing any more
    publisher._push.set_hwm(3)
    for _ in range(10):
        publisher.publish(b"x")
    assert publisher.dropped == 10 - publisher.published > 0
    publisher._push.close(linger=0)
    publisher._push = held
    publisher.close()


def test_what_is_no_question_is_not_answered(publisher: Publisher, reader: Reader) -> None:
    reader.replay.send_multipart((b"", b"all of it"))
    reader.replay.send(b"x")
    assert not reader.replay.poll(100)
    publisher.publish(encoded([stored([1] * 16)], BLOCK, 0.0))
    reader.next()


def test_an_endpoint_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--kv-events-endpoint 'nowhere' cannot be opened"):
        Publisher("nowhere", None, "")
    with pytest.raises(ConfigError, match=r"--kv-events-replay-endpoint 'tcp://nowhere' cannot be opened"):
        Publisher(f"ipc://{tmp_path}/events", "tcp://nowhere", "")


def test_an_engine_tells_of_prompts_answers_and_resets(publisher: Publisher, reader: Reader) -> None:
    """The blocks of a prompt and its answer, and states without which none of it is a hit."""
    sizes = geometry(BLOCK, 64)
    memory = Memory(sizes, 40, 0, 4)
    rules = SchedConfig(4, 256, 512, vocab=40)
    runner = TellTaleRunner(memory, sizes, 40)
    loop = OwnedLoop(
        CacheConfig(sizes, 40, 0), rules, runner, InstantMover(memory.copy), WallClock(), publisher=publisher
    )
    prompt = (np.arange(150) % 40).astype(np.int32)
    loop.submit(Request("r", prompt, SamplingParams(60, ignore_eos=True)))
    answer: list[int] = []
    while loop.serving:
        for event in loop.step():
            answer += getattr(event, "tokens", ())
    loop.reset()
    blocks: dict[int, list[int]] = {}
    states: set[int] = set()
    removed: set[tuple[int | None, int]] = set()
    while loop.directory.use(Tier.DEVICE).cached or reader.heard.poll(200):
        for event in reader.next()[2].events:
            if isinstance(event, BlockStored) and event.group_idx == 0:
                before = blocks[event.parent_block_hash] if event.parent_block_hash is not None else []
                for i, name in enumerate(event.block_hashes):
                    before = blocks[name] = before + event.token_ids[i * BLOCK : (i + 1) * BLOCK]
            elif isinstance(event, BlockStored):
                states |= set(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                removed |= {(event.group_idx, name) for name in event.block_hashes}
    whole = [*prompt.tolist(), *answer]
    assert max(map(len, blocks.values())) == 208 and all(tokens == whole[: len(tokens)] for tokens in blocks.values())
    assert {128} <= {len(blocks[name]) for name in states}, "the end of the prompt, on the grid of rungs"
    assert removed == {(0, name) for name in blocks} | {(1, name) for name in states}
    assert loop.stats().event_batches["sent"] > 3 and loop.stats().event_batches["dropped"] == 0
