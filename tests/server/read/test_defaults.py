"""What a call gets where it says nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from stepwell.base.errors import ConfigError
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.model.ends import Ends
from stepwell.server.read.defaults import SamplingDefaults, print_defaults, read_defaults, with_ends
from tests.server.harness import running

QWEN = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2], "pad_token_id": 0}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "generation_config.json").write_text(json.dumps(QWEN))
    return str(tmp_path)


def test_values_are_the_models_own_unless_told_otherwise(model: str, tmp_path: Path) -> None:
    own = read_defaults(model)
    assert (own.temperature, own.top_k, own.top_p, own.min_p) == (0.6, 20, 0.95, 0.0)
    assert str(own) == "temperature 0.6, top_p 0.95, top_k 20" and own.source == "generation_config.json"
    for none in ("none", "vllm"):
        assert read_defaults(model, none) == SamplingDefaults()
    assert read_defaults(str(tmp_path / "elsewhere")) == SamplingDefaults()
    other = tmp_path / "other.json"
    other.write_text('{"temperature": 0, "max_new_tokens": 7, "top_k": -1}')
    named = read_defaults(model, str(other))
    assert (named.temperature, named.max_tokens, named.top_k, named.source) == (0, 7, 0, str(other))
    assert read_defaults("nowhere", model).top_k == 20  # a folder


def test_override_counts_before_the_file(model: str) -> None:
    both = read_defaults(model, override='{"temperature": 0.2, "top_k": null}')
    assert (both.temperature, both.top_k) == (0.2, 20) and "--override-generation-config" in both.source
    assert read_defaults(model, "none", '{"min_p": 0.1}') == SamplingDefaults(
        min_p=0.1, source="--override-generation-config"
    )


@pytest.mark.parametrize(
    ("which", "override", "said"),
    [
        ("nowhere", None, "--generation-config 'nowhere'"),
        ("auto", "[1]", "JSON object"),
        ("auto", "{", "not JSON"),
        ("auto", '{"best_of": 2}', "sets 'best_of'"),
        ("auto", '{"temperature": 5}', "temperature must be less than or equal to 2"),
        ("auto", '{"top_p": 0}', "top_p"),
    ],
)
def test_what_cannot_be_used_names_flag_and_field(model: str, which: str, override: str | None, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        read_defaults(model, which, override)
    assert said in str(told.value)


def asked(tokenizer: Tokenizer, defaults: SamplingDefaults, **fields: Any) -> Any:
    """What the engine was asked for."""
    with running(tokenizer, defaults=defaults) as server:
        body = {"prompt": [5, 6, 7], **fields}
        assert httpx.post(server.url + "/v1/completions", json=body, timeout=60).status_code == 200
        return server.loop.seen[-1].params


def test_defaults_reach_the_engine_and_a_call_counts_before_them(tokenizer: Tokenizer) -> None:
    defaults = SamplingDefaults(0.6, 0.95, 20, 0.1, 1.1, 0.2, 0.3, max_tokens=4, ends=(9,))
    said = asked(tokenizer, defaults)
    assert (said.temperature, said.top_p, said.top_k, said.min_p, said.max_tokens) == (0.6, 0.95, 20, 0.1, 4)
    assert (said.repetition_penalty, said.presence_penalty, said.frequency_penalty) == (1.1, 0.2, 0.3)
    assert said.stop_token_ids == (9,)
    plain = asked(
        tokenizer,
        defaults,
        temperature=0,
        top_p=1,
        top_k=0,
        min_p=0,
        max_tokens=2,
        ignore_eos=True,
        repetition_penalty=1,
        presence_penalty=0,
        frequency_penalty=0,
        stop_token_ids=[8],
    )
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p, plain.max_tokens) == (0, 1, 0, 0, 2)
    assert not plain.penalises and plain.stop_token_ids == (8,)


def test_end_of_a_turn_that_only_the_template_tells_ends_answers(tokenizer: Tokenizer) -> None:
    assert tokenizer.turn_end() == 2
    known = Ends((("config.json", (0,)),))
    assert with_ends(SamplingDefaults(), known, tokenizer).ends == (2,)
    assert with_ends(SamplingDefaults(), known.with_template(2), tokenizer).ends == ()
    out = io.StringIO()
    print_defaults(Console(file=out, width=200), read_defaults("nowhere"), known, tokenizer)
    told = out.getvalue()
    assert "0 '<|endoftext|>' (config.json); 2 '<|im_end|>' (chat template)" in told
    assert "warning: token 2 " in told and "temperature 1" in told
