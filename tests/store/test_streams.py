"""Copies between device and host: right bytes in the right places, on a lane of this process and, where there is one, on a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.base.geometry import Geometry, Ints  # noqa: E402
from stepwell.base.shapes import ModelShape  # noqa: E402
from stepwell.cache.moves import Extent, LiveState, Move, Report, Tier  # noqa: E402
from stepwell.store.device import LiveStates, Precision  # noqa: E402
from stepwell.store.host import HostArena, pinned  # noqa: E402
from stepwell.store.mover import CopyMover  # noqa: E402
from stepwell.store.streams import Lane, StreamCopier, cuda_lanes  # noqa: E402
from stepwell.testing.lanes import MemoryLane  # noqa: E402

SLOTS = 32
SHAPE = ModelShape.from_config(
    {
        "model_type": "qwen3_5_text",
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 4,
    }
)
PRECISION = Precision(torch.bfloat16, torch.bfloat16)
GEOMETRY: Geometry = SHAPE.geometry(block=4, widths=PRECISION.widths)
PAGE, IMAGE = GEOMETRY.page_bytes, GEOMETRY.image_pages


class Pair:
    """Device pages of random bytes, an empty host arena, live states, and a mover between them."""

    def __init__(self, device: str) -> None:
        where = torch.device(device)
        self.pages = torch.randint(0, 256, (SLOTS, PAGE), dtype=torch.uint8, device=where)
        self.host = HostArena(SLOTS, PAGE, allocate=pinned if device == "cuda" else None)
        self.live = LiveStates(3, SHAPE, GEOMETRY, PRECISION, where, depth=2)
        self.up: Lane
        self.down: Lane
        self.up, self.down = cuda_lanes(where) if device == "cuda" else (MemoryLane(0.5), MemoryLane(0.25))
        self.mover = CopyMover(StreamCopier(self.pages, self.host, self.live, up=self.up, down=self.down))

    def run(self, move: Move) -> Report:
        self.mover.start([move])
        assert self.mover.drain(60)
        [report] = self.mover.poll()
        return report


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=CUDA)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(request.param)
    yield pair
    pair.mover.close()


def ints(*slots: int) -> Ints:
    return np.array(slots, np.int32)


def save(ticket: int, pages: Ints, slots: Ints) -> Move:
    return Move(ticket, "kv", Extent(Tier.DEVICE, pages), Extent(Tier.HOST, slots), 0)


def load(ticket: int, slots: Ints, pages: Ints) -> Move:
    return Move(ticket, "kv", Extent(Tier.HOST, slots), Extent(Tier.DEVICE, pages), 0)


def test_random_moves_there_and_back_again(pair: Pair) -> None:
    rng = random.Random(0)
    original = pair.pages.clone()
    for ticket in range(0, 60, 2):
        count = rng.randint(0, 12)
        pages, slots = (ints(*rng.sample(range(SLOTS), count)) for _ in range(2))
        assert pair.run(save(ticket, pages, slots)) == Report(ticket, True)
        pair.pages[torch.from_numpy(pages.astype(np.int64)).to(pair.pages.device)] = 0xDB
        assert pair.run(load(ticket + 1, slots, pages)) == Report(ticket + 1, True)
        assert torch.equal(pair.pages, original)


def test_an_image_reaches_its_live_state_from_either_tier_and_no_other(pair: Pair) -> None:
    pages = np.random.default_rng(1).permutation(SLOTS)[:IMAGE].astype(np.int32)
    slots = np.random.default_rng(2).permutation(SLOTS)[:IMAGE].astype(np.int32)
    assert pair.run(save(1, pages, slots)).ok
    rows = pair.pages[torch.from_numpy(pages.astype(np.int64)).to(pair.pages.device)]
    image = pair.live.as_images(rows.contiguous())
    for ticket, source in ((0, Extent(Tier.HOST, slots)), (2, Extent(Tier.DEVICE, pages))):
        pair.live.committed.fill_(7)
        pair.live.pending.fill_(1)
        assert pair.run(Move(ticket, "image", source, LiveState(ticket), 64)).ok
        back = SHAPE.conv_kernel - 1
        for mine, its in ((pair.live.recurrent, image.recurrent), (pair.live.conv[:, :, :back], image.conv)):
            assert torch.equal(mine[:, ticket].view(torch.uint8), its[:, 0].contiguous().view(torch.uint8))
        assert pair.live.committed.tolist() == [-1 if i == ticket else 7 for i in range(4)]
        assert pair.live.pending.tolist() == [0 if i == ticket else 1 for i in range(4)]
    for untouched in (pair.live.recurrent, pair.live.conv):
        assert not untouched[:, [1, 3]].any()
    assert not pair.live.conv[:, :, SHAPE.conv_kernel - 1 :].any()


def test_a_torn_host_copy_and_bad_slots_are_reports(pair: Pair) -> None:
    assert pair.run(save(1, ints(1, 2), ints(1, 2))).ok
    pair.host.rows[2, 0] ^= 255
    assert "host slot 2 fails its checksum" in pair.run(load(2, ints(1, 2), ints(1, 2))).error
    assert "has 32 slots" in pair.run(save(3, ints(32), ints(0))).error
    assert "has 32 slots" in pair.run(load(4, ints(1), ints(-1))).error
    assert "2 slots to 1" in pair.run(load(5, ints(1, 2), ints(0))).error
    assert (
        "which has 3 slots"
        in pair.run(Move(6, "image", Extent(Tier.DEVICE, ints(*range(IMAGE))), LiveState(3), 0)).error
    )
    for ticket, (source, target) in enumerate(((Tier.HOST, Tier.HOST), (Tier.DISK, Tier.HOST)), 7):
        report = pair.run(Move(ticket, "kv", Extent(source, ints(1)), Extent(target, ints(0)), 0))
        assert not report.ok and source.name.lower() in report.error


def test_each_way_has_a_lane_and_its_time_is_that_of_the_bytes() -> None:
    pair = Pair("cpu")
    assert isinstance(pair.up, MemoryLane) and isinstance(pair.down, MemoryLane)
    with pair.mover:
        assert pair.run(save(1, ints(4, 5, 6), ints(0, 1, 2))).seconds == 0.25
        assert pair.run(load(2, ints(0, 1, 2), ints(8, 9, 10))).seconds == 0.5
        # a piece a page: page-locked memory may end between any two slots
        assert [len(sent.sizes) for sent in (*pair.down.sent, *pair.up.sent)] == [3, 3]
        pair.mover.start([save(t, ints(t), ints(t + 8)) for t in range(10, 16)])
        assert pair.mover.drain(60) and all(report.ok for report in pair.mover.poll())
        assert (
            sum(len(sent.sizes) for sent in pair.down.sent) == 9
            and (pair.host.rows[18:24] == pair.pages[10:16].numpy()).all()
        )
        pair.up.refusing = "the link is down"
        assert pair.run(load(3, ints(0), ints(8))).error == "the link is down"
        assert pair.run(save(4, ints(0), ints(8))).ok


@CUDA
def test_no_copy_waits_for_the_compute() -> None:
    pair = Pair("cuda")
    with pair.mover:
        torch.cuda._sleep(20_000_000_000)  # cycles: seconds of a step that is still under way
        busy = torch.cuda.Event()
        busy.record()
        assert pair.run(save(1, ints(5), ints(0))).ok and not busy.query()
