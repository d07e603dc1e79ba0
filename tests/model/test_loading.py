"""Checkpoints in every published layout give the same model; one that does not fit is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.model.checkpoint import Checkpoint  # noqa: E402
from stepwell.model.loading import load_decoder  # noqa: E402
from stepwell.model.safetensors_file import SafetensorsFile  # noqa: E402
from stepwell.model.staging import InMemory, Place, Staged  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402

Tensors = dict[str, Any]
TOKENS = np.random.default_rng(2).integers(3, 512, 40).astype(np.int32)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("dense"), hidden=64, layers=4, vocab=512)


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch: Any = "qwen3_5_moe"
    return write_checkpoint(tmp_path_factory.mktemp("moe"), arch=arch, hidden=64, layers=4, vocab=512, experts=4)


def logits(directory: Path) -> Any:
    rig = Rig(load_decoder(directory), pages=3, slots=1)
    return rig.last(work(TOKENS, rig.table(40), 0, 40))


def changed(
    source: Path,
    target: Path,
    tensors: Callable[[Tensors], Tensors] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """A copy of a checkpoint with other tensors, or with these fields in its config."""
    shutil.copytree(source, target)
    if tensors is not None:
        file = target / "model.safetensors"
        save_file({n: t.contiguous() for n, t in tensors(load_file(file)).items()}, file)
    if config is not None:
        file = target / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return target


def fused(tensors: Tensors) -> Tensors:
    """All experts of a layer in one tensor, as the released files have them."""
    rest = {name: t for name, t in tensors.items() if ".mlp.experts." not in name}
    for layer in range(4):
        own = f"model.layers.{layer}.mlp.experts."
        get = lambda expert, part, own=own: tensors[f"{own}{expert}.{part}_proj.weight"]  # noqa: E731
        rest[f"{own}gate_up_proj"] = torch.stack([torch.cat((get(e, "gate"), get(e, "up"))) for e in range(4)])
        rest[f"{own}down_proj"] = torch.stack([get(e, "down") for e in range(4)])
    return rest


def wrapped(tensors: Tensors) -> Tensors:
    """The names of a vision wrapper, with a vision tower and a drafting head that nobody asked for."""
    named = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    return {**named, "model.visual.patch.weight": torch.zeros(2), "mtp.fc.weight": torch.zeros(2, 2)}


def test_fused_experts_equal_separate_ones(moe: Path, tmp_path: Path) -> None:
    assert torch.equal(logits(changed(moe, tmp_path / "fused", fused)), logits(moe))


def test_a_vision_wrapper_equals_its_text_model(dense: Path, tmp_path: Path) -> None:
    text = json.loads((dense / "config.json").read_text())
    wrapper = changed(dense, tmp_path / "wrapper", wrapped)
    (wrapper / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    assert torch.equal(logits(wrapper), logits(dense))


def test_shards_equal_a_single_file(dense: Path, tmp_path: Path) -> None:
    shards = changed(dense, tmp_path / "shards")
    tensors = load_file(shards / "model.safetensors")
    (shards / "model.safetensors").unlink()
    where = {name: f"part-{i % 3}.safetensors" for i, name in enumerate(tensors)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, shards / file)
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert torch.equal(logits(shards), logits(dense))


def test_tied_embeddings_need_no_head(dense: Path, tmp_path: Path) -> None:
    def tie(tensors: Tensors) -> Tensors:
        return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}

    def drop(tensors: Tensors) -> Tensors:
        return {name: t for name, t in tensors.items() if name != "lm_head.weight"}

    same = changed(dense, tmp_path / "same", tie)
    tied = changed(dense, tmp_path / "tied", drop, {"tie_word_embeddings": True})
    assert torch.allclose(logits(tied), logits(same), atol=1e-5)
    assert torch.equal(logits(changed(same, tmp_path / "both", None, {"tie_word_embeddings": True})), logits(tied))


def test_the_element_type_can_be_chosen(dense: Path) -> None:
    assert load_decoder(dense).dtype == torch.float32
    assert load_decoder(dense, dtype=torch.bfloat16).dtype == torch.bfloat16


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


def plus(name: str, tensor: Any) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensor}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("model.layers.2.linear_attn.A_log"), r"missing: model\.layers\.2\.linear_attn\.A_log"),
        (plus("model.layers.9.surprise", torch.zeros(1)), r"unexpected: model\.layers\.9\.surprise"),
        (plus("model.norm.weight", torch.zeros(3)), r"wrong shape: model\.norm\.weight \[3\] instead of \[64\]"),
        (plus("model.language_model.norm.weight", torch.zeros(64)), "holds model.norm.weight twice"),
        (lambda tensors: {"lm_head.weight": tensors["lm_head.weight"]}, "and 50 more"),
    ],
)
def test_tensors_that_do_not_fit_are_named(dense: Path, tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_decoder(changed(dense, tmp_path / "bad", change))


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/model.safetensors", "weights.bin"])
def test_an_index_cannot_name_files_elsewhere(dense: Path, tmp_path: Path, name: str) -> None:
    bad = changed(dense, tmp_path / "bad")
    (bad / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(ConfigError, match="same directory"):
        load_decoder(bad)


def test_what_happens_to_the_files_of_a_loaded_model_changes_nothing(dense: Path, tmp_path: Path) -> None:
    live = changed(dense, tmp_path / "live")
    decoder, file = load_decoder(live), live / "model.safetensors"

    def answer() -> Any:
        rig = Rig(decoder, pages=3, slots=1)
        return rig.last(work(TOKENS, rig.table(40), 0, 40))

    before = answer()
    with file.open("r+b") as writing:
        header = 8 + int.from_bytes(writing.read(8), "little")
        writing.seek(header)
        writing.write(bytes(file.stat().st_size - header))
    assert torch.equal(answer(), before)
    os.truncate(file, 100)
    assert torch.equal(answer(), before)
    assert str(file) not in Path("/proc/self/maps").read_text()


def test_progress_counts_every_byte_that_is_read(dense: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    load_decoder(changed(dense, tmp_path / "wrapper", wrapped), progress=lambda done, total: told.append((done, total)))
    total = sum(t.nbytes for t in load_file(dense / "model.safetensors").values())
    assert told[-1] == (total, total)  # the vision tower and the drafting head are not read
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def header(entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        (1 << 62).to_bytes(8, "little") + bytes(100),
        (4).to_bytes(8, "little") + b"[[[[",
        (4).to_bytes(8, "little") + b"[  ]",
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}}),
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}}),
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [8, 4]}}),
        header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 16]}}),
        header({"a": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}}),
        header({"a": {"dtype": "F32", "shape": ["4"], "data_offsets": [0, 16]}}),
        header({"a": {"shape": [4], "data_offsets": [0, 16]}}),
        header({"a": 5}),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="download the checkpoint again"):
        SafetensorsFile(path)


PLACES = [
    pytest.param(InMemory, id="in place"),
    pytest.param(lambda: Staged(torch.device("cpu"), 2), id="through buffers"),
    pytest.param(
        lambda: Staged(torch.device("cuda"), 2),
        id="to a GPU",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ),
]


@pytest.mark.parametrize("make", PLACES)
def test_a_tensor_is_read_in_pieces_and_a_file_that_shrinks_meanwhile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Place]
) -> None:
    place = make()
    monkeypatch.setattr("stepwell.model.safetensors_file.PIECE", 1000)
    path, tensor = tmp_path / "model.safetensors", torch.randn(50, 40)
    save_file({"a": tensor, "b": torch.randn(3).bfloat16(), "c": torch.zeros(0, 4)}, path)
    file = SafetensorsFile(path)
    with ThreadPoolExecutor(3) as threads:
        several = [file.begin(name, threads, place) for name in "abca"]
        found = [reading.result().cpu() for reading in several]
        assert torch.equal(found[0], tensor) and torch.equal(found[3], tensor)
        assert torch.equal(found[1], load_file(path)["b"])
        assert found[2].shape == (0, 4)
        content = path.read_bytes()
        os.truncate(path, path.stat().st_size - 100)
        with pytest.raises(ConfigError, match="shorter while it was read"):
            file.begin("a", threads, place).result()
        path.write_bytes(content)
        assert torch.equal(file.begin("a", threads, place).result().cpu(), tensor)  # no buffer is lost with a failure
    file.close()


def test_tensors_are_read_ahead_up_to_a_size_and_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {name: torch.full((1000,), float(i)) for i, name in enumerate("abcdefgh")}
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr("stepwell.model.checkpoint._AHEAD", 2 * 4000)
    begun: list[str] = []
    real = SafetensorsFile.begin
    monkeypatch.setattr(
        SafetensorsFile, "begin", lambda self, name, *more: (begun.append(name), real(self, name, *more))[1]
    )
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.read_ahead(["a", "b", "not there", "c", "d", "e", "f"])
        assert begun == ["a", "b"]
        for name in "adgbcefh":  # not quite in that order, and some that nobody has told of
            assert torch.equal(checkpoint.tensor(name), tensors[name])
            assert len(begun) <= len(set(begun))
        assert sorted(begun) == list("abcdefgh")
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.read_ahead("ab")  # who fails half way leaves no thread behind


def test_missing_and_damaged_files_are_named(dense: Path, tmp_path: Path) -> None:
    bad = changed(dense, tmp_path / "bad")
    (bad / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ConfigError, match="download the checkpoint again"):
        load_decoder(bad)
    (bad / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="only safetensors"):
        load_decoder(bad)
