"""Text and tokens, against the tokenizer's own decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.base.errors import ConfigError, RequestError
from stepwell.engine.text.detokenizer import ByteDecoder
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.testing.tokenizer import SPECIAL, train_tokenizer, write_tokenizer
from tests.server.templates import word_tokenizer


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path, train_tokenizer(320), 4096)
    return path


@pytest.fixture(scope="session")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(str(directory))


@settings(deadline=None)
@given(text=st.text(max_size=60).filter(lambda text: not any(name in text for name in SPECIAL)))
def test_decoding_undoes_encoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 319), max_size=40))
def test_any_ids_decode_as_the_tokenizer_itself_decodes_them(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert isinstance(tokenizer.decoder(), ByteDecoder)
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids, skip_special_tokens=True)


def test_special_tokens_and_padding_rows_are_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("".join(SPECIAL)).tolist()
    assert ids == [0, 1, 2]
    assert tokenizer.decode([*ids, 100_000]) == ""


def test_added_tokens_with_spaces_decode_as_they_are_written(tmp_path: Path) -> None:
    backend = train_tokenizer(300)
    backend.add_tokens(["two words", "é!"])
    write_tokenizer(tmp_path, backend, 4096)
    tokenizer = Tokenizer.load(str(tmp_path))
    text = "a two words é! b"
    ids = tokenizer.encode(text).tolist()
    assert max(ids) >= 300
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


def test_conversation_is_rendered_by_the_template(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    closed = tokenizer.encode_chat(messages, open_answer=False)
    opened = tokenizer.encode_chat(messages)
    continued = tokenizer.encode_chat(messages, open_answer=False, continue_last=True)
    assert opened[: len(closed)].tolist() == closed.tolist()
    assert tokenizer.decode(opened.tolist()).endswith("yes\nassistant\n")
    assert tokenizer.decode(continued.tolist()).endswith("assistant\nyes")


def test_template_that_fails_and_template_that_is_missing_are_the_callers_to_hear(
    directory: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(str(directory))
    with pytest.raises(RequestError, match="template refuses"):
        tokenizer.encode_chat([{"role": 5, "content": "x"}])
    with pytest.raises(RequestError, match="cannot be set"):
        tokenizer.encode_chat([{"role": "user", "content": "x"}], variables={"chat_template": "{{ 1 }}"})
    train_tokenizer(300).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RequestError, match="no chat template"):
        Tokenizer.load(str(tmp_path)).encode_chat([{"role": "user", "content": "x"}])


def test_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "none"), "no-such-organisation/no-such-model"):
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            Tokenizer.load(name)


def test_the_files_own_kind_of_vocabulary_counts_whatever_is_usual_for_the_model(tmp_path: Path) -> None:
    word_tokenizer(tmp_path)
    text = {"model_type": "qwen3_5_moe_text"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_moe", "text_config": text}))
    tokenizer = Tokenizer.load(str(tmp_path))
    assert tokenizer.encode("w7 w5").tolist() == [7, 5]
    assert tokenizer.decode([7, 5]) == "w7 w5"


def test_a_tokenizer_that_cannot_encode_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, train_tokenizer(300), 4096)
    file = tmp_path / "tokenizer.json"
    told = json.loads(file.read_text())
    told["post_processor"] = told["pre_tokenizer"] = told["decoder"] = None
    told["added_tokens"] = []
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for name in [name for name in config if name.endswith("_token")]:
        del config[name]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for model, words in (
        ({"type": "BPE", "vocab": {}, "merges": []}, "makes no token of a word"),
        ({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}, "cannot encode text .*: fetch it again"),
    ):
        file.write_text(json.dumps({**told, "model": model}))
        with pytest.raises(ConfigError, match=words):
            Tokenizer.load(str(tmp_path))
