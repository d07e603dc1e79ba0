"""The demo checkpoint: loads in Transformers, is the same every time, and its state matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell.testing.checkpoint import Arch, main, write_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
SMALL: dict[str, Any] = {"hidden": 64, "layers": 4, "vocab": 512}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Any:
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()


@pytest.mark.parametrize(
    ("arch", "experts"), [("qwen3_5", 0), ("qwen3_5_moe", 4), ("qwen3_next", 0), ("qwen3_next", 4)]
)
def test_transformers_finds_every_tensor_and_no_other(tmp_path: Path, arch: Arch, experts: int) -> None:
    path = write_checkpoint(tmp_path, arch=arch, experts=experts, **SMALL)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(info.values())
    assert model.dtype == torch.float32
    assert model(torch.tensor([[5, 6, 7]])).logits.shape == (1, 3, 512)


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_checkpoint(tmp_path / name, **SMALL) for name in ("a", "b"))
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in FILES)
    other = write_checkpoint(tmp_path / "c", seed=1, **SMALL)
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
    assert (first / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


def test_text_survives_the_tokenizer(checkpoint: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    assert len(tokenizer) == 2048
    for text in ("The capital of France is Paris.\n\n    x = 12345", "日本語, émojis 🎉\t", "  two  spaces "):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_template_is_chatml(checkpoint: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)


def test_greedy_answers_are_text_and_do_not_loop(checkpoint: Path, model: Any) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    prompt = tokenizer("Tell me a story", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=60)[0, prompt["input_ids"].shape[1] :].tolist()
    assert len(answer) == 60
    assert len(set(answer)) > 40
    assert tokenizer.decode(answer).isascii()


def test_a_zeroed_state_changes_answers_for_long(model: Any) -> None:
    tokens = torch.randint(3, 2048, (1, 128), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(tokens).logits[0, 64:]
        right, wrong = (_resume(model, tokens, zeroed) for zeroed in (False, True))
    assert (right - whole).abs().max() < 1e-4
    assert (wrong - whole).abs().amax(1).min() > 0.1
    assert (wrong.argmax(1) != whole.argmax(1)).float().mean() > 0.4


def _resume(model: Any, tokens: Any, zeroed: bool) -> Any:
    cache = transformers.DynamicCache(config=model.config)
    model(tokens[:, :64], past_key_values=cache)
    if zeroed:
        for layer in cache.layers:
            if hasattr(layer, "recurrent_states"):
                layer.recurrent_states[0].zero_()
    return model(tokens[:, 64:], past_key_values=cache).logits[0]


@pytest.mark.parametrize(
    "sizes", [{"arch": "gpt2"}, {"hidden": 100}, {"layers": 6}, {"vocab": 100}, {"experts": 4}, {"arch": "qwen3_5_moe"}]
)
def test_sizes_that_cannot_work_are_refused(tmp_path: Path, sizes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|needs"):
        write_checkpoint(tmp_path, **(SMALL | sizes))


def test_command_line_writes_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path / "x"), "--arch", "qwen3_next", "--hidden", "64", "--layers", "4", "--vocab", "300"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "x")
    assert all((tmp_path / "x" / name).is_file() for name in FILES)
    with pytest.raises(SystemExit):
        main([str(tmp_path / "y"), "--layers", "3"])
