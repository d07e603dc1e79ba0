"""Checkpoints in FP8 equal the same weights stored unpacked, to the bit; forms that are not served are refused with a list."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.model.config import HybridConfig  # noqa: E402
from stepwell.model.fp8 import weight_bytes  # noqa: E402
from stepwell.model.fp8_format import Fp8Format  # noqa: E402
from stepwell.model.loading import load_decoder  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.test_loading import changed  # noqa: E402

Tensors = dict[str, Any]
TOKENS = np.random.default_rng(2).integers(3, 512, 40).astype(np.int32)
PACKED = ("q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "in_proj_qkvz", "out_proj", "gate_proj",
          "up_proj", "down_proj")  # fmt: skip
OFFICIAL: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.embed_tokens", "model.layers.0.linear_attn.in_proj_a"],
}
DYNAMIC: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head", "re:.*linear_attn.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        }
    },
}
BY_BLOCK: dict[str, Any] = {
    **DYNAMIC,
    "config_groups": {
        "group_0": {
            **DYNAMIC["config_groups"]["group_0"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
        }
    },
}


@pytest.fixture(scope="module", params=["qwen3_5", "qwen3_next", "qwen3_5_moe"])
def plain(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    experts = 4 if request.param == "qwen3_5_moe" else 0
    return write_checkpoint(
        tmp_path_factory.mktemp("plain"), arch=request.param, hidden=384, layers=4, vocab=512, experts=experts
    )


def packed(weight: Any, rows: int, columns: int, kind: Any) -> tuple[Any, Any, Any]:
    """e4m3 values, their scales of type `kind`, and the matrix in float32 that they stand for: block by block, in a plain loop."""
    out, depth = weight.shape
    scales = torch.empty(-(-out // rows), -(-depth // columns), dtype=kind)
    values, twin = torch.empty(out, depth, dtype=torch.float8_e4m3fn), torch.empty(out, depth)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scales[i, j] = weight[at].abs().max() / 448
            values[at] = (weight[at] / scales[i, j].float()).clamp(-448, 448).to(torch.float8_e4m3fn)
            twin[at] = values[at].float() * scales[i, j].float()
    return values, scales, twin


def packs(
    source: Path, folder: Path, config: dict[str, Any], kind: Any = torch.float32, rename: Callable[[str], str] = str
) -> tuple[Path, Path]:
    """A pack of the checkpoint, and the same weights in float32."""
    stored, twins = {}, {}
    form = Fp8Format.from_config(config)
    assert form is not None
    for name, tensor in load_file(source / "model.safetensors").items():
        stored[rename(name)] = twins[name] = tensor
        if name.removesuffix(".weight").endswith(PACKED):
            values, scales, twins[name] = packed(tensor, form.rows, form.columns or tensor.shape[1], kind)
            stored[rename(name)], stored[form.scales_of(rename(name))] = values, scales
    pack = changed(source, folder / "pack", lambda _: stored, {"quantization_config": config})
    return pack, changed(source, folder / "twin", lambda _: twins)


def logits(directory: Path, dtype: Any = None) -> Any:
    rig = Rig(load_decoder(directory, dtype), pages=12, slots=1)
    return rig.last(work(TOKENS, rig.table(40), 0, 40))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "block"), [(torch.float32, [128, 128]), (torch.bfloat16, [80, 112])])
def test_an_official_pack_equals_its_twin(plain: Path, tmp_path: Path, kind: Any, block: list[int]) -> None:
    """Blocks are whole, or cut off on either side."""
    pack, twin = packs(plain, tmp_path, {**OFFICIAL, "weight_block_size": block}, kind)
    assert torch.equal(logits(pack), logits(twin))
    assert not torch.equal(logits(pack), logits(plain)), "packing costs precision: the pack was read"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", [DYNAMIC, BY_BLOCK])
def test_a_dynamic_pack_of_compressed_tensors_equals_its_twin(plain: Path, tmp_path: Path, config: Any) -> None:
    pack, twin = packs(plain, tmp_path, config, torch.bfloat16)
    assert torch.equal(logits(pack), logits(twin))


def test_a_pack_in_bfloat16_is_rounded_once(plain: Path, tmp_path: Path) -> None:
    pack, twin = packs(plain, tmp_path, OFFICIAL)
    assert torch.equal(logits(pack, torch.bfloat16), logits(twin, torch.bfloat16))


def wrapped(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_exclusions_may_be_spelt_either_way(plain: Path, tmp_path: Path, prefix: str) -> None:
    """In a vision wrapper, whose settings stand outside of the text model's."""
    excluded = [f"{prefix}layers.0.linear_attn.in_proj_b", "model.visual.merger", "mtp.fc"]
    config = {**OFFICIAL, "modules_to_not_convert": excluded}
    pack, twin = packs(plain, tmp_path, config, rename=wrapped)
    text = json.loads((pack / "config.json").read_text())
    del text["quantization_config"]
    if (kind := text["model_type"].removesuffix("_text")) != "qwen3_next":
        (pack / "config.json").write_text(
            json.dumps({"model_type": kind, "text_config": text, "quantization_config": config})
        )
    assert torch.equal(logits(pack), logits(twin))


def test_the_memory_that_values_take_is_told(plain: Path, tmp_path: Path) -> None:
    pack, _ = packs(plain, tmp_path, OFFICIAL)
    stored = load_file(pack / "model.safetensors")
    fp8 = [t for t in stored.values() if t.dtype == torch.float8_e4m3fn]
    (note,) = load_decoder(pack).notes
    assert f"{len(fp8)} matrices" in note and "held as" in note and "of float32" in note
    assert load_decoder(plain).notes == ()


def test_the_bytes_of_weights_are_counted_as_they_are_held(plain: Path, tmp_path: Path) -> None:
    pack, _ = packs(plain, tmp_path, OFFICIAL)
    config, stored = HybridConfig.from_file(pack), load_file(pack / "model.safetensors")
    matrices = {name: t for name, t in stored.items() if not name.endswith("_scale_inv")}
    assert weight_bytes(config, 4, kept=False) == sum(4 * t.numel() for t in matrices.values())
    # scales of experts that are counted as one stack come out as those of single ones, rounded up once
    assert abs(weight_bytes(config, 4, kept=True) - sum(t.nbytes for t in stored.values())) < 2000


@pytest.mark.sampled(1)
def test_values_and_scales_need_each_other(plain: Path, tmp_path: Path) -> None:
    pack, _ = packs(plain, tmp_path, OFFICIAL)
    name = next(n for n in load_file(pack / "model.safetensors") if n.endswith("_scale_inv"))
    weight = name.removesuffix("_scale_inv")

    def fault(label: str, change: Callable[[Tensors], Tensors], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load_decoder(changed(pack, tmp_path / label, change))

    fault("lost", lambda t: {n: x for n, x in t.items() if n != name}, f"{weight} as FP8, with no scales {name}")
    fault("wide", lambda t: {**t, weight: t[weight].float()}, f"{weight} as F32, with scales {name}")
    fault("short", lambda t: {**t, name: t[name][:, :1].contiguous()[:0]}, "of the wrong shape")
    bare = changed(pack, tmp_path / "bare", None, {"quantization_config": None})
    with pytest.raises(ConfigError, match="no quantization_config"):
        load_decoder(bare)


@pytest.mark.sampled(1)
def test_a_matrix_that_a_pack_left_alone_is_read_as_it_is(plain: Path, tmp_path: Path) -> None:
    """Whatever the list of exclusions says."""
    pack, twin = packs(plain, tmp_path, {**OFFICIAL, "modules_to_not_convert": []})
    own = load_file(pack / "model.safetensors")
    name = next(n for n in own if n.endswith("o_proj.weight"))
    value = load_file(twin / "model.safetensors")[name]
    del own[f"{name}_scale_inv"]
    save_file({**own, name: value}, pack / "model.safetensors")
    assert torch.equal(logits(pack), logits(twin))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("arch", "experts"), [("qwen3_5", 0), ("qwen3_next", 4), ("qwen3_5_moe", 4)])
def test_transformers_reads_the_same_model(tmp_path: Path, arch: Any, experts: int) -> None:
    """Experts fill whole blocks: where the gate's last block is cut off, it stacks gate and up in other blocks than were packed."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    small = write_checkpoint(tmp_path / "small", arch=arch, hidden=256, layers=4, vocab=512, experts=experts)
    pack, _ = packs(small, tmp_path, OFFICIAL)
    config = {**OFFICIAL, "dequantize": True}
    asked = changed(pack, tmp_path / "asked", None, {"quantization_config": config})
    model = transformers.AutoModelForCausalLM.from_pretrained(asked, dtype=torch.float32)
    with torch.inference_mode():
        reference = model(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0, -1]
    assert (logits(pack) - reference).abs().max() < 1e-4


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "gptq"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_method": "gguf"},
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {}}},
        {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {}}},
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
        {**OFFICIAL, "fmt": "e5m2"},
        {**OFFICIAL, "activation_scheme": "static"},
        {**OFFICIAL, "weight_block_size": None},
        {**OFFICIAL, "weight_block_size": [128, 0]},
        {},
        "fp8",
    ],
)
def test_other_forms_are_refused_with_what_is_served(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"served are bfloat16.*FP8 in blocks.*compressed-tensors"):
        Fp8Format.from_config(config)


def test_a_pack_of_modelopt_is_refused_by_its_file(plain: Path, tmp_path: Path) -> None:
    pack = changed(plain, tmp_path / "pack")
    (pack / "hf_quant_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="ModelOpt; served are"):
        HybridConfig.from_file(pack)
