"""Images between live states and pages: by torch's operations, and by the kernel, which is to do the same to the byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.base.shapes import ModelShape  # noqa: E402
from stepwell.store.device import DeviceArena, LiveStates, Precision  # noqa: E402
from stepwell.store.images import ImageCopies, KernelImages, PlainImages, image_copies  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGES, SLOTS, BLOCK = 60, 5, 4
CONFIG = {
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
ODD = {"num_key_value_heads": 1, "linear_key_head_dim": 5, "linear_value_head_dim": 3, "hidden_size": 18}


class Rig:
    """Arena and live states of noise."""

    def __init__(self, config: dict[str, Any], dtype: torch.dtype, drafts: bool, depth: int) -> None:
        shape = ModelShape.from_config({**config, "mtp_num_hidden_layers": 1} if drafts else config)
        shape = shape.drafting() if drafts else shape
        precision = Precision(dtype, dtype)
        geometry = shape.geometry(block=BLOCK, widths=precision.widths)
        self.arena = DeviceArena(PAGES, shape, geometry, precision, DEVICE)
        self.live = LiveStates(SLOTS, shape, geometry, precision, DEVICE, depth)
        rng = torch.Generator().manual_seed(3)
        for memory in (self.arena.rows, self.live.recurrent, self.live.conv, self.live.hidden):
            noise = torch.randint(0, 255, (memory.numel() * memory.itemsize,), dtype=torch.uint8, generator=rng)
            memory.copy_(noise.view(memory.dtype).view(memory.shape))
        self.image_pages = geometry.image_pages

    def memory(self) -> list[bytes]:
        parts = self.arena.rows, self.live.recurrent, self.live.conv, self.live.hidden, self.live.committed
        return [part.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for part in parts]


def upload(arrays: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(array).to(DEVICE) for array in arrays]


def copies(kind: type[PlainImages] | type[KernelImages], rig: Rig) -> ImageCopies:
    return kind(rig.arena, rig.live, upload)


@pytest.mark.parametrize("save", [True, False])
@pytest.mark.parametrize(
    ("config", "dtype", "drafts", "depth"),
    [
        (CONFIG, torch.bfloat16, False, 0),
        (CONFIG, torch.float32, False, 0),
        (CONFIG, torch.bfloat16, True, 4),
        ({**CONFIG, **ODD}, torch.bfloat16, False, 0),
        ({**CONFIG, **ODD}, torch.bfloat16, True, 2),
    ],
)
def test_the_kernel_copies_what_torch_does_and_touches_nothing_else(
    config: dict[str, Any], dtype: torch.dtype, drafts: bool, depth: int, save: bool
) -> None:
    rigs = [Rig(config, dtype, drafts, depth) for _ in range(2)]
    count = rigs[0].image_pages
    assert count > 1
    pages = np.random.default_rng(1).permutation(PAGES)[: 3 * count].astype(np.int32)
    places = [(slot, pages[at * count : (at + 1) * count]) for at, slot in enumerate((4, 0, 2))]
    before = rigs[0].memory()
    for kind, rig in zip((PlainImages, KernelImages), rigs, strict=True):
        made = copies(kind, rig)
        (made.save if save else made.load)(places)
    plain, kernel = (rig.memory() for rig in rigs)
    assert plain == kernel
    assert plain != before


def test_what_is_left_of_an_images_last_page_is_zero() -> None:
    rig = Rig(CONFIG, torch.bfloat16, True, 0)
    geometry = rig.arena.geometry
    rest = geometry.image_pages * geometry.page_bytes - geometry.image_bytes
    assert rest
    pages = np.arange(geometry.image_pages, dtype=np.int32)
    copies(KernelImages, rig).save([(1, pages)])
    assert not rig.arena.rows[pages[-1], -rest:].any()


def test_an_image_goes_there_and_back_and_its_slot_says_where_it_came_from() -> None:
    rig = Rig(CONFIG, torch.bfloat16, False, 0)
    made = copies(KernelImages, rig)
    pages = np.arange(rig.image_pages, dtype=np.int32)[::-1].copy()
    state = rig.live.recurrent[:, 3].clone(), rig.live.conv[:, 3].clone()
    made.save([(3, pages)])
    rig.live.committed[1] = 77
    made.load([(1, pages)])
    assert torch.equal(rig.live.recurrent[:, 1], state[0]) and torch.equal(rig.live.conv[:, 1], state[1])
    assert rig.live.committed[1] == -1


def test_no_image_is_no_copy() -> None:
    rig = Rig(CONFIG, torch.bfloat16, False, 0)
    before = rig.memory()
    for kind in (PlainImages, KernelImages):
        copies(kind, rig).save([])
        copies(kind, rig).load([])
    assert rig.memory() == before


def test_a_cpu_copies_by_torch() -> None:
    rig = Rig(CONFIG, torch.bfloat16, False, 0)
    kind = KernelImages if DEVICE.type == "cuda" else PlainImages
    assert isinstance(image_copies(rig.arena, rig.live, upload), kind)
