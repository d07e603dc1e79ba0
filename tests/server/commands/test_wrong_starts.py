"""What can be wrong with a start, and the one sentence that says what to change. All of it is told without PyTorch."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.server.commands.preflight import expect_template
from stepwell.testing.checkpoint import write_checkpoint

_PROGRAM = """
import json, sys
from typer.testing import CliRunner
from stepwell.cli import app
sys.modules["lmcache"] = None
for line in sys.stdin:
    case = json.loads(line)
    done = CliRunner().invoke(app, ["serve", *case["arguments"]], env=case["environment"])
    assert not {"torch", "transformers"} & set(sys.modules)
    print(json.dumps([done.exit_code, done.output, repr(done.exception)]), flush=True)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with which nothing is wrong."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_checkpoint(folder)
    return folder


@dataclass(slots=True)
class Starter:
    """Starts servers in a process that imports no PyTorch, one after the other."""

    child: subprocess.Popen[str] | None = None

    def __call__(self, arguments: list[str], given: dict[str, str]) -> tuple[int, str]:
        """Status and output of a start that must fail. One that does not is ended, and the next has a new process."""
        if self.child is None:
            environment = {**os.environ, "COLUMNS": "300", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.child = subprocess.Popen([sys.executable, "-c", _PROGRAM], env=environment, **pipes)
        child = self.child
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps({"arguments": arguments, "environment": given}) + "\n")
        child.stdin.flush()
        deadline = threading.Timer(60, child.kill)
        deadline.start()
        line = child.stdout.readline()
        deadline.cancel()
        if not line:
            self.close()
            pytest.fail(f"no answer within 60 s: has `stepwell serve {' '.join(arguments)}` begun to serve?")
        status, output, error = json.loads(line)
        assert "SystemExit" in error, error
        return status, output

    def close(self) -> None:
        if self.child is not None:
            with self.child as child:
                child.kill()
            self.child = None


@pytest.fixture(scope="module")
def starter() -> Iterator[Callable[..., tuple[int, str]]]:
    """Starts a server in a process that has no PyTorch, and gives status and output."""
    one = Starter()
    yield one
    one.close()


def edited(name: str, **fields: Any) -> Callable[[Path], None]:
    """Change fields of a JSON file."""

    def edit(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return edit


def written(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


BROKEN = (
    (removed("config.json"), "has no config.json: give the directory of a Hugging Face checkpoint"),
    (written("config.json", "{"), "config.json is not JSON"),
    (edited("config.json", model_type="gpt2"), "model_type 'gpt2': supported are"),
    (edited("config.json", hidden_size=10**12), "hidden_size = 1000000000000: no model has more than"),
    (edited("config.json", num_hidden_layers=10**9, layer_types=None), "num_hidden_layers = 1000000000"),
    (edited("config.json", hidden_size=-64), "needs hidden_size as a whole number of at least 1, not -64"),
    (edited("config.json", hidden_size="wide"), "needs hidden_size as a whole number of at least 1, not 'wide'"),
    (edited("config.json", num_hidden_layers=-4, layer_types=None), "needs num_hidden_layers as a whole number"),
    (edited("config.json", num_attention_heads=10**6), "num_attention_heads = 1000000: no model has more than"),
    (edited("config.json", num_key_value_heads=3), "must be a multiple of the second"),
    (edited("config.json", linear_num_value_heads=10**6), "linear_num_value_heads = 1000000: no model has more than"),
    (edited("config.json", hidden_size=2**23, intermediate_size=2**23), "parameters, more than any model has"),
    (edited("config.json", head_dim=0), "needs head_dim as a whole number of at least 1"),
    (edited("config.json", max_position_embeddings=10**10), "max_position_embeddings = 10000000000: no model has"),
    (edited("config.json", rms_norm_eps=-1e-6), "needs rms_norm_eps as a positive number, not"),
    (edited("config.json", rms_norm_eps=10**400), "needs rms_norm_eps as a positive number, not"),
    (edited("config.json", rms_norm_eps=float("inf")), "needs rms_norm_eps as a positive number, not"),
    (edited("config.json", hidden_act="gelu"), "hidden_act = 'gelu': only 'silu' is supported"),
    (edited("config.json", dtype="int4", torch_dtype="int4"), "dtype 'int4': supported are"),
    (edited("config.json", layer_types=["full_attention"]), "one layer_types entry for each"),
    (edited("config.json", vocab_size=100), "but vocab_size in config.json is 100: the two are not of one model"),
    (edited("config.json", eos_token_id=10**9), "has 1000000000 as eos_token_id: tokens are 0 …"),
    (edited("config.json", eos_token_id="end"), "needs eos_token_id as a token or a list of tokens"),
    (removed("tokenizer.json"), "has no tokenizer.json: copy it there"),
    (written("tokenizer.json", '{"x":'), "tokenizer.json is not JSON"),
    (written("tokenizer.json", "{}"), "has no 'model': it is no tokenizer"),
    (edited("tokenizer_config.json", chat_template="{% for x in %}"), "is no Jinja template"),
    (removed("model.safetensors"), "--load-format dummy makes random weights"),
)
FLAGS = (
    (["--max-queu", "3"], "No such option: --max-queu"),
    (["--max-queue", "many"], "Invalid value for '--max-queue'"),
    (["--port", "99999"], "Invalid value for '--port'"),
    (["--host", "203.0.113.7"], "choose another --host or --port"),
    (["--device", "gpu"], "--device 'gpu' is unknown: use one of auto, cpu, cuda"),
    (["--device", "cuda"], "no CUDA device is visible; use --device cpu"),
    (["--dtype", "int3"], "--dtype 'int3' is unknown: use one of"),
    (["--device-memory", "lots"], "cannot read 'lots' as a size"),
    (["--device", "cpu", "--device-memory", "900TiB"], "that are free: ask for less"),
    (["--host-memory", "900TiB"], "that are free: ask for less"),
    (["--disk-cache", "/proc/x:1GiB"], "--disk-cache /proc/x cannot be made"),
    (["--disk-cache", "nosize"], "write PATH:SIZE"),
    (["--disk-cache", f"{__file__}:1GiB"], "is not a folder: choose one"),
    (["--config", "missing.toml"], "cannot read missing.toml"),
    (["--chat-template", "missing.jinja"], "give the path of a Jinja template"),
    (["--default-chat-template-kwargs", "x"], "is not valid JSON"),
    (["--max-model-len", "0"], "--max-model-len must be at least"),
    (["--tensor-parallel-size", "3"], "--tensor-parallel-size 3 must divide num_attention_heads"),
    (["--kv-events-endpoint", "5557"], "is no address: give one such as tcp://*:5557"),
    (["--kv-offload", "lmcache"], "needs lmcache, which is not installed: pip install 'stepwell[lmcache]'"),
    (["--kv-transfer-config", "{}"], "--kv-offload lmcache has LMCache below them"),
    (["--block-size", "0"], "--block-size must be at least 1"),
    (["--trust-remote-code", "--enable-lora"], "adapters are not supported: merge them into the checkpoint"),
)


@pytest.mark.parametrize(("breakage", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_a_broken_checkpoint(
    starter: Callable[..., tuple[int, str]],
    model: Path,
    tmp_path: Path,
    breakage: Callable[[Path], None],
    words: str,
) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(model, folder)
    breakage(folder)
    said(starter([str(folder)], {}), words)


@pytest.mark.parametrize(("flags", "words"), FLAGS, ids=[" ".join(flags)[-40:] for flags, _ in FLAGS])
def test_a_wrong_flag(starter: Callable[..., tuple[int, str]], model: Path, flags: list[str], words: str) -> None:
    said(starter([str(model), *flags], {}), words)


@pytest.mark.parametrize(
    ("name", "words"),
    [("/nowhere", "/nowhere does not exist: give the directory"), (__file__, "is a file: give the directory")],
)
def test_a_wrong_path(starter: Callable[..., tuple[int, str]], name: str, words: str) -> None:
    said(starter([name], {}), words)


def test_a_wrong_variable(starter: Callable[..., tuple[int, str]], model: Path) -> None:
    said(starter([str(model)], {"STEPWELL_PROT": "1"}), "did you mean STEPWELL_PORT?")


def test_a_wrong_key_and_a_wrong_value_in_a_file(
    starter: Callable[..., tuple[int, str]], model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "stepwell.toml"
    for text, words in (
        ("max-queu = 1", "did you mean max-queue?"),
        ('max-queue = "x"', "'--max-queue'"),
        ("x", "TOML"),
    ):
        file.write_text(text)
        said(starter([str(model), "--config", str(file)], {}), words)


def test_a_port_that_is_taken(starter: Callable[..., tuple[int, str]], model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        flags = ["--port", str(other.getsockname()[1]), "--device", "cpu"]
        said(starter([str(model), *flags], {}), "Address already in use): choose another --host or --port")


def test_shards_that_the_index_names_and_nobody_has(
    starter: Callable[..., tuple[int, str]], model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    places = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    said(
        starter([str(folder)], {}), "lacks 1 files that model.safetensors.index.json names, such as model-2.safetensors"
    )


def said(told: tuple[int, str], words: str) -> None:
    """One sentence, behind at most the two lines on how a command is called, and status 2."""
    status, output = told
    lines = [line for line in output.splitlines() if line and not line.startswith(("Usage:", "Try ", "note:"))]
    assert status == 2 and len(lines) == 1, output
    assert words in lines[0] and "Traceback" not in output, output


def test_tags_that_transformers_adds_to_templates_are_no_error() -> None:
    expect_template("{% for m in messages %}{%- generation -%}{{ m }}{% endgeneration %}{% break %}{% endfor %}", "x")
    with pytest.raises(ConfigError, match="--chat-template"):
        expect_template("{{ messages", "x")
