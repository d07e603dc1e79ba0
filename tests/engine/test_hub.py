"""Models by name, without a network: what the Hub's client has in its cache, and what is said where it has nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from typer.testing import CliRunner

from stepwell.base.errors import ConfigError
from stepwell.cli import app
from stepwell.engine.hub import WANTED, local_model
from stepwell.testing.checkpoint import write_checkpoint

NAME, COMMIT = "wells/tiny", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as the Hub's client keeps it."""
    root: Path = tmp_path_factory.mktemp("hub")
    here = root / "models--wells--tiny"
    (here / "refs").mkdir(parents=True)
    (here / "refs" / "main").write_text(COMMIT)
    (here / "refs" / "old").write_text(COMMIT)
    write_checkpoint(here / "snapshots" / COMMIT, hidden=64, layers=4, vocab=300)
    return root


def test_name_is_found_in_the_cache_by_branch_or_commit(cache: Path) -> None:
    for revision in (None, "old", COMMIT):
        found = local_model(NAME, revision, str(cache), fetch=False)
        assert Path(found).name == COMMIT and (Path(found) / "config.json").exists()


def test_directory_stays_one_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wells" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert local_model(NAME) == NAME
    for path in ("nowhere", "/no/where", "a/b/c", "../x/y", ""):
        assert local_model(path) == path  # told later, as a directory that is not there
    with pytest.raises(ConfigError, match="--revision is for models of the Hub"):
        local_model(NAME, "main")


def test_what_is_nowhere_is_told_with_the_places_that_were_looked_at(cache: Path) -> None:
    for name, revision in (("wells/other", None), (NAME, "new")):
        with pytest.raises(ConfigError) as told:
            local_model(name, revision, str(cache), fetch=False)
        text = str(told.value)
        assert (
            name in text
            and str(cache / f"models--{name.replace('/', '--')}") in text
            and str(Path(name).absolute()) in text
        )
    with pytest.raises(ConfigError):
        local_model("wells/..", None, str(cache), fetch=False)


def test_nothing_but_weights_and_words_is_asked_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **fields: Any) -> str:
        asked.update(fields, name=name)
        return "there"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert local_model(NAME, "v2", str(cache)) == "there"
    assert (asked["name"], asked["revision"], asked["local_files_only"]) == (NAME, "v2", False)
    patterns = [re.compile(pattern.replace(".", "\\.").replace("*", ".*")) for pattern in WANTED]
    for file in ("modeling_x.py", "pytorch_model.bin", "model.pt", "x.pkl", "model.gguf", "setup.sh"):
        assert not any(pattern.fullmatch(file) for pattern in patterns)
    for file in ("model-00001-of-2.safetensors", "config.json", "model.safetensors.index.json", "chat_template.jinja"):
        assert any(pattern.fullmatch(file) for pattern in patterns)


def test_refusal_of_the_hub_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, **fields: Any) -> str:
        raise OSError("no such repository\nand much more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ConfigError, match=r"the Hub does not give wells/tiny at v2: no such repository$"):
        local_model(NAME, "v2")


def test_doctor_looks_at_a_model_of_the_cache_and_fetches_nothing(cache: Path) -> None:
    arguments = [
        "doctor",
        NAME,
        "--download-dir",
        str(cache),
        "--port",
        "0",
        "--host-memory",
        "1MiB",
        "--max-model-len",
        "512",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and "weights" in done.output, done.output
    none = CliRunner().invoke(app, ["doctor", "wells/other", "--download-dir", str(cache)])
    assert none.exit_code == 2 and "nothing was asked for" in " ".join(none.output.split())
