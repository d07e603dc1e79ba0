"""KV in FP8 and states in bfloat16: found again in every tier, and never read by an engine with another type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save  # noqa: E402

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.cache.moves import Tier  # noqa: E402
from stepwell.engine.config import engine_config  # noqa: E402
from stepwell.engine.worker.kv_scales import calibrated  # noqa: E402
from stepwell.model.decoder import HybridDecoder  # noqa: E402
from stepwell.model.layers import Attention  # noqa: E402
from stepwell.model.loading import load_decoder  # noqa: E402
from stepwell.ops.attention import places, write_kv  # noqa: E402
from stepwell.ops.linear import Dense  # noqa: E402
from stepwell.store.device import LiveStates, Precision  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.engine.disk import PROMPT, VOCAB, Engine, small_model, sources  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.engine.test_disk_tier import to_host  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model") / "hybrid")


def test_every_route_gives_the_cold_answer_and_no_other_type_is_read(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    with Engine.of(model, disk, kv_cache_dtype="fp8") as engine:
        seen = [engine.ask(), engine.ask()]
        engine.settle()
        to_host(engine)
        engine.forget(Tier.DEVICE)
        seen.append(engine.ask())
        engine.forget(Tier.DEVICE, Tier.HOST)
        seen.append(engine.ask())
        engine.settle()
        pages = engine.loop.directory.config.device_pages
    with Engine.of(model, disk, kv_cache_dtype="fp8_e4m3") as engine:
        seen.append(engine.ask())
        engine.settle()
    routes = [(0, 0, 0, 150), (128, 0, 0, 22), (0, 128, 0, 22), (0, 0, 128, 22), (0, 0, 128, 22)]
    assert [sources(one.outcome) for one in seen] == routes
    assert len({one.token_ids for one in seen}) == 1
    with Engine.of(model, disk) as engine:
        assert sources(engine.ask().outcome) == (0, 0, 0, 150), "pages of another type"
        engine.settle()
        # float32 takes four times as much; pages that images need do not shrink
        assert 3.5 < pages / engine.loop.directory.config.device_pages <= 4
    with Engine.of(model, disk, kv_cache_dtype="fp8") as engine:
        assert sources(engine.ask().outcome) == (0, 0, 128, 22), "its own are still there"


def test_large_values_are_clamped() -> None:
    pages = torch.zeros(2, 3, 4, 1, 8).to(torch.float8_e4m3fn)
    big = torch.tensor([1e9, -1e9, 449.0, 464.0, 480.0, float("inf"), float("-inf"), 1.0]).view(1, 1, 8)
    place = places(np.array([1]), np.array([2]), pages[0])
    write_kv(big, -big, pages[0], pages[1], torch.from_numpy(place))
    expected = torch.tensor([448.0, -448.0, 448.0, 448.0, 448.0, 448.0, -448.0, 1.0])
    assert torch.equal(pages[0, 1, 2, 0].float(), expected) and torch.equal(pages[1, 1, 2, 0].float(), -expected)


def test_a_type_that_the_model_has_not_is_refused() -> None:
    assert Precision.of(torch.bfloat16, "bfloat16") == Precision.of(torch.bfloat16)
    with pytest.raises(ConfigError, match="--kv-cache-dtype bfloat16 needs --dtype bfloat16"):
        Precision.of(torch.float32, "bfloat16")


def test_states_in_bfloat16_take_half_and_are_read_by_no_other_engine(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    with Engine.of(model, disk, state_dtype="bfloat16") as engine:
        seen = [engine.ask(), engine.ask()]
        engine.settle()
        small = engine.loop.directory.config.geometry.image_bytes
    assert [sources(one.outcome) for one in seen] == [(0, 0, 0, 150), (128, 0, 0, 22)]
    with Engine.of(model, disk) as engine:
        assert sources(engine.ask().outcome) == (0, 0, 0, 150)
        engine.settle()
        assert small < 0.7 * engine.loop.directory.config.geometry.image_bytes
    with Engine.of(model, disk, state_dtype="bfloat16") as engine:
        assert sources(engine.ask().outcome) == (0, 0, 128, 22)


SCALED = {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}


def kept(disk: Path) -> Path:
    (file,) = disk.glob("kv-scales-*.safetensors")
    return file


def test_scales_are_calibrated_once_and_every_route_gives_the_cold_answer(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    with Engine.of(model, disk, **SCALED) as engine:
        first = kept(disk).read_bytes()
        seen = [engine.ask(), engine.ask()]
        engine.settle()
        to_host(engine)
        engine.forget(Tier.DEVICE)
        seen.append(engine.ask())
        engine.forget(Tier.DEVICE, Tier.HOST)
        seen.append(engine.ask())
        engine.settle()
    with Engine.of(model, disk, **SCALED) as engine:
        assert kept(disk).read_bytes() == first, "another start calibrates nothing"
        seen.append(engine.ask())
        engine.settle()
    routes = [(0, 0, 0, 150), (128, 0, 0, 22), (0, 128, 0, 22), (0, 0, 128, 22), (0, 0, 128, 22)]
    assert [sources(one.outcome) for one in seen] == routes
    assert len({one.token_ids for one in seen}) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", ["lost", "flipped", "other model"])
def test_pages_with_scales_that_are_not_known_any_more_are_never_read(model: Path, tmp_path: Path, fault: str) -> None:
    disk = tmp_path / "cache"
    with Engine.of(model, disk, **SCALED) as engine:
        engine.ask()
        engine.settle()
    with Engine.of(model, disk, kv_cache_dtype="fp8") as engine:
        assert sources(engine.ask().outcome) == (0, 0, 0, 150), "pages with scale 1"
        engine.settle()
    file = kept(disk)
    damage(file, fault)
    with Engine.of(model, disk, **SCALED) as engine:
        assert sources(engine.ask().outcome) == (0, 0, 0, 150)
        engine.settle()
    with Engine.of(model, disk, **SCALED) as engine:
        assert sources(engine.ask().outcome) == (0, 0, 128, 22), "what lies there since has scales that are known"


def damage(file: Path, fault: str) -> None:
    if fault == "lost":
        file.unlink()
    elif fault == "flipped":
        data = bytearray(file.read_bytes())
        data[-2] ^= 0x80  # the exponent's last bit: still a power of two
        file.write_bytes(data)
    else:
        file.write_bytes(
            save({name: torch.ones(5, 1) for name in ("keys", "values")}, {"name": "0" * 16, "digest": ""})
        )


def test_the_calibration_sees_what_the_model_computes_in_its_own_type(model: Path) -> None:
    """Not states or pages that nobody has written: the same tokens give the same scales, whatever memory held before."""
    decoder = load_decoder(model)
    precision = Precision.of(torch.float32, "fp8")
    geometry = decoder.config.shape.geometry(widths=precision.widths)
    live = LiveStates(2, decoder.config.shape, geometry, precision, decoder.device)
    tokens = np.asarray(PROMPT, np.int32)
    found = []
    for poison, most in ((0.0, 150), (float("nan"), 64)):
        live.recurrent.fill_(poison)
        live.conv.fill_(poison)
        found.append(calibrated(decoder, tokens, live, geometry, precision, most))
    assert torch.equal(found[0].keys, found[1].keys) and torch.equal(found[0].values, found[1].values)
    rig = Rig(decoder, pages=40)
    pages = rig.table(len(tokens))
    rig.last(work(tokens, pages, 0, len(tokens)))
    for scales, stored in ((found[0].keys, rig.arena.keys), (found[0].values, rig.arena.values)):
        rows = [layer[torch.from_numpy(pages).long()].flatten(0, 1)[: len(tokens)] for layer in stored]
        largest = torch.stack([layer.abs().amax((0, 2)) for layer in rows])
        assert ((largest / scales <= 224) & (largest / scales > 112)).all()


def test_scales_hold_what_scale_one_would_clamp(model: Path) -> None:
    """A model whose values reach 5,000: clamped they give another answer, scaled nearly the same."""
    decoder = load_decoder(model)
    precision, tokens = Precision.of(torch.float32, "fp8"), np.asarray(PROMPT, np.int32)
    shape = decoder.config.shape
    _enlarge_values(decoder, 20_000.0)
    geometry = shape.geometry(widths=precision.widths)
    live = LiveStates(2, shape, geometry, precision, decoder.device)
    scales = calibrated(decoder, tokens, live, geometry, precision, 150)
    logits = {}
    for name, kv, own in (("exact", "auto", None), ("one", "fp8", None), ("scaled", "fp8", scales)):
        rig = Rig(decoder, pages=40, kv=kv, scales=own)
        logits[name] = rig.last(work(tokens, rig.table(len(tokens)), 0, len(tokens))).double()
    off = {name: float((logits[name] - logits["exact"]).norm() / logits["exact"].norm()) for name in ("one", "scaled")}
    assert off["scaled"] < 0.1 < off["one"], off


def _enlarge_values(decoder: HybridDecoder, factor: float) -> None:
    """Multiply the rows of all value projections."""
    for layer in decoder._layers:
        if isinstance(mixer := layer.mixer, Attention):
            assert isinstance(mixer.into, Dense)
            first = (mixer.heads + mixer.kv_heads) * mixer.head_dim
            mixer.into.weight[first : first + mixer.kv_heads * mixer.head_dim] *= factor


def test_scales_of_kv_in_another_type_are_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="give --kv-cache-dtype fp8, too"):
        engine_config({"model": str(model), "calculate_kv_scales": True})


def test_drafts_have_scales_of_their_own_layer_and_change_no_answer(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "mtp", hidden=64, layers=4, vocab=VOCAB, max_positions=4096, mtp=True)
    answers = []
    for drafts in (0, 2):
        disk = tmp_path / f"cache {drafts}"
        with Engine.of(model, disk, num_speculative_tokens=drafts, **SCALED) as engine:
            answers += [engine.ask().token_ids, engine.ask().token_ids]
            engine.settle()
        with safe_open(kept(disk), "pt") as file:
            assert file.get_tensor("keys").shape[0] == (2 if drafts else 1), "one layer of four attends"
    assert len(set(answers)) == 1
