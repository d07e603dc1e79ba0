"""Pages and live states: where each byte is, and images that survive the way there and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.base.errors import StoreError  # noqa: E402
from stepwell.base.geometry import Geometry  # noqa: E402
from stepwell.base.shapes import ModelShape  # noqa: E402
from stepwell.store.device import DeviceArena, LiveStates, Precision  # noqa: E402

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
CPU = torch.device("cpu")
ZERO, ONE = (np.array([slot], np.int32) for slot in (0, 1))


@pytest.fixture
def geometry() -> Geometry:
    return SHAPE.geometry(block=4, widths=PRECISION.widths)


@pytest.fixture
def arena(geometry: Geometry) -> DeviceArena:
    return DeviceArena(10, SHAPE, geometry, PRECISION, CPU)


@pytest.fixture
def live(geometry: Geometry) -> LiveStates:
    states = LiveStates(3, SHAPE, geometry, PRECISION, CPU)
    states.recurrent.copy_(torch.randn(states.recurrent.shape))
    states.conv.copy_(torch.randn(states.conv.shape))
    return states


def test_a_page_holds_all_layers_of_one_block(arena: DeviceArena) -> None:
    # two attention layers, keys and values, 4 tokens, 2 heads of 8
    assert arena.page_bytes == 2 * 2 * 4 * 2 * 8 * 2
    assert len(arena.keys) == 2
    arena.keys[1][7, 3, 1] = 1
    page = arena.rows[7].view(torch.bfloat16).view(2, 2, 4, 2, 8)
    assert page[1, 0, 3, 1].eq(1).all()
    assert int(page.count_nonzero()) == 8
    assert not arena.rows[:7].any()
    assert not arena.rows[8:].any()


def test_the_host_reads_and_writes_pages_as_rows(arena: DeviceArena) -> None:
    rows = np.arange(2 * arena.page_bytes, dtype=np.uint32).astype(np.uint8).reshape(2, -1)
    arena.write(np.array([9, 4], np.int32), rows)
    assert (arena.read(np.array([4, 9], np.int32)) == rows[::-1]).all()
    with pytest.raises(StoreError):
        arena.read(np.array([10], np.int32))
    with pytest.raises(StoreError):
        arena.write(np.array([-1], np.int32), rows[:1])


def test_an_image_goes_through_scattered_pages(arena: DeviceArena, live: LiveStates, geometry: Geometry) -> None:
    assert geometry.image_pages > 1
    pages = np.random.default_rng(0).permutation(10)[: geometry.image_pages].astype(np.int32)
    arena.put(pages, live.pack(ONE).rows)
    before = live.recurrent.clone(), live.conv.clone()
    live.unpack(arena.get(pages), 2)
    assert torch.equal(live.recurrent[:, 2], before[0][:, 1])
    assert torch.equal(live.conv[:, 2], before[1][:, 1])
    assert torch.equal(live.recurrent[:, :2], before[0][:, :2])


def test_an_image_lands_from_host_bytes(live: LiveStates) -> None:
    image = live.pack(ZERO).rows.numpy().reshape(-1).copy()
    live.load_image(2, image)
    assert torch.equal(live.recurrent[:, 2], live.recurrent[:, 0])
    assert torch.equal(live.conv[:, 2], live.conv[:, 0])


def test_images_of_several_slots_lie_one_behind_the_other(live: LiveStates, geometry: Geometry) -> None:
    both = live.pack(np.array([2, 0], np.int32))
    each = [live.pack(np.array([slot], np.int32)).rows for slot in (2, 0)]
    assert torch.equal(both.rows, torch.cat(each))
    assert both.rows.shape[0] == 2 * geometry.image_pages
    assert torch.equal(live.as_images(both.rows).recurrent, live.recurrent[:, [2, 0]])


def test_the_spare_page_and_the_spare_slot_are_nobodys(arena: DeviceArena, live: LiveStates) -> None:
    assert (arena.spare, len(arena.rows), len(arena.keys[0])) == (10, 10, 11)
    arena.keys[0][arena.spare] = 1
    assert not arena.rows.any()
    assert (live.slots, live.recurrent.shape[1], live.conv.shape[1]) == (3, 4, 4)


def test_an_image_is_a_copy(live: LiveStates) -> None:
    image = live.pack(ZERO)
    kept = image.rows.clone()
    live.zero(0)
    assert torch.equal(image.rows, kept)
    assert not live.recurrent[:, 0].any()
    assert not live.conv[:, 0].any()
    assert live.recurrent[:, 1].all()


def test_touched_pages_on_a_cpu_are_zero_and_the_others_are_left_alone() -> None:
    geometry = SHAPE.geometry(block=4, widths=PRECISION.widths)
    arena = DeviceArena(8, SHAPE, geometry, PRECISION, CPU)
    arena.rows.fill_(1)
    arena.touch(3 * geometry.page_bytes + 1)
    assert not arena.rows[:3].any() and arena.rows[3:].all()


def test_pages_on_a_cpu_take_no_memory_before_they_are_written() -> None:
    program = """
import sys
from pathlib import Path
from stepwell.store.device import DeviceArena
from tests.store.test_device import CPU, PRECISION, SHAPE
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) << 12
geometry = SHAPE.geometry(block=4, widths=PRECISION.widths)
before = resident()
arena = DeviceArena(2**28 // geometry.page_bytes, SHAPE, geometry, PRECISION, CPU)
print(resident() - before, bool(arena.rows[-1].any()))
arena.touch(2**26)
print(resident() - before)
"""
    # in a process of its own: the allocator of one that has run many tests may hand out memory that is there already
    command = [sys.executable, "-c", program]
    told = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=True
    ).stdout.split()
    assert int(told[0]) < 2**26 and told[1] == "False"
    assert int(told[2]) >= int(told[0]) + 2**25  # once they are touched they do
