"""What ends an answer: four sources, each of which may be the only one that knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.model.config import HybridConfig
from stepwell.model.ends import Ends
from tests.model.test_config import DENSE


def written(path: Path, **files: Any) -> Path:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_ends_are_those_of_all_files_and_each_says_where_it_comes_from(tmp_path: Path) -> None:
    written(
        tmp_path,
        config={**DENSE, "eos_token_id": 7},
        generation_config={"eos_token_id": [7, 8]},
        tokenizer_config={"eos_token": {"content": "<end>"}, "added_tokens_decoder": {"9": {"content": "<end>"}}},
    )
    ends = HybridConfig.from_file(tmp_path).ends
    assert ends.tokens == (7, 8, 9)
    assert ends.sources(7) == ("config.json", "generation_config.json") and ends.sources(9) == (
        "tokenizer_config.json",
    )
    doubts = list(ends.doubts())
    assert len(doubts) == 1 and "token 9 " in doubts[0] and "tokenizer_config.json" in doubts[0]


def test_text_of_the_tokenizers_end_is_looked_up_in_either_file(tmp_path: Path) -> None:
    written(tmp_path, config={**DENSE, "eos_token_id": 7}, tokenizer_config={"eos_token": "<end>"})
    assert Ends.from_directory(tmp_path).tokens == (7,)  # a name without a token
    written(tmp_path, tokenizer={"added_tokens": [{"id": 3, "content": "<start>"}, {"id": 4, "content": "<end>"}]})
    assert Ends.from_directory(tmp_path).tokens == (7, 4)


def test_template_is_the_fourth_source_and_agreement_is_no_doubt(tmp_path: Path) -> None:
    written(tmp_path, config={**DENSE, "eos_token_id": [7, 9]})
    ends = Ends.from_directory(tmp_path)
    assert ends.with_template(None) == ends
    assert not list(ends.with_template(9).doubts())
    assert ends.with_template(11).tokens == (7, 9, 11)
    assert "chat template" in next(ends.with_template(11).doubts())


def test_nothing_that_ends_answers_is_a_doubt(tmp_path: Path) -> None:
    written(tmp_path, config={**DENSE, "eos_token_id": None})
    ends = Ends.from_directory(tmp_path)
    assert ends.tokens == () and "max_tokens" in next(ends.doubts())


@pytest.mark.parametrize("name", ["config", "generation_config"])
def test_an_end_that_is_no_token_is_refused_with_its_file(tmp_path: Path, name: str) -> None:
    written(tmp_path, config=DENSE)
    written(tmp_path, **{name: {**DENSE, "eos_token_id": "</s>"}})
    with pytest.raises(ConfigError, match=rf"{name}\.json needs eos_token_id"):
        Ends.from_directory(tmp_path)


@pytest.mark.parametrize("odd", [{"eos_token": 5}, {"eos_token": "x", "added_tokens_decoder": {"a": 1, "1": None}}, {}])
def test_odd_tokenizer_files_name_nothing(tmp_path: Path, odd: dict[str, Any]) -> None:
    written(tmp_path, config={**DENSE, "eos_token_id": 7}, tokenizer_config=odd, tokenizer={"added_tokens": [1, {}]})
    assert Ends.from_directory(tmp_path).tokens == (7,)
