"""Checks of a start before PyTorch is imported, which takes seconds: flags, files, device, memory, folder, port.

Everything here is looked at again where it is used. What is said here is said sooner.
"""

from __future__ import annotations

import ctypes
import re
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from stepwell.base.errors import ConfigError
from stepwell.base.extras import expect_extra
from stepwell.base.units import format_size
from stepwell.engine.config import EngineConfig, engine_config
from stepwell.model.config import HybridConfig
from stepwell.model.files import LONGEST_VOCABULARY, read_json
from stepwell.server.prompt.template_use import template_use
from stepwell.store.disk.folder import prepare
from stepwell.store.host import available_memory

_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model")
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_LONGEST_INDEX = 64 << 20
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""A tag that Transformers adds to Jinja's, around what an assistant says."""


def preflight(values: Mapping[str, Any]) -> None:
    """Look at the flags of `stepwell serve` by name, and at what they name. Raises ConfigError, which says what to change."""
    config = engine_of(values)
    template = template_use(values).text
    if template is not None:
        expect_template(template, f"--chat-template {values['chat_template']}")
    if Path(config.model).is_dir():  # otherwise it has a name on the Hub, and is fetched later
        expect_files(config, own_template=template is None)
    expect_device(config.device)
    if config.kv_offload == "lmcache":
        expect_extra("lmcache", "--kv-offload lmcache")
    expect_memory(config)
    if config.disk_cache is not None:
        with closing(prepare(Path(config.disk_cache.path))):
            pass
    listen(values["host"], values["port"]).close()


def engine_of(values: Mapping[str, Any]) -> EngineConfig:
    """The engine's part of the flags by name. Raises ConfigError."""
    own = {f.name: values[f.name] for f in fields(EngineConfig) if f.name in values}
    own["served_model_name"] = None
    if values["fair_salts"] is None:
        own["fair_salts"] = values["salt_per_key"]
    return engine_config(own)


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the port, so that no other process gets it. Raises ConfigError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    listener.set_inheritable(False)
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {host}:{port} ({error}): choose another --host or --port")


def expect_files(config: EngineConfig, own_template: bool = True) -> None:
    """Look at the checkpoint's directory. `own_template`: its chat template will be used. Raises ConfigError."""
    directory = Path(config.model)
    model = HybridConfig.from_file(directory).shard(config.tensor_parallel_size)
    _expect_tokenizer(directory, model.shape.vocab)
    beyond = [token for token in model.eos_token_ids if not 0 <= token < model.shape.vocab]
    if beyond:
        raise ConfigError(
            f"{directory} has {beyond[0]} as eos_token_id: tokens are 0 … {model.shape.vocab - 1}, as vocab_size says; mend one of the two"
        )
    if own_template:
        _expect_own_template(directory)
    if config.dummy_seed is None:
        _expect_weights(directory)


def _expect_tokenizer(directory: Path, vocab: int) -> None:
    if not any((directory / name).is_file() for name in _VOCABULARIES):
        raise ConfigError(
            f"{directory} has no tokenizer.json: copy it there from where the model comes from, with tokenizer_config.json"
        )
    file = directory / _VOCABULARIES[0]
    if not file.is_file():
        return
    told = read_json(file, LONGEST_VOCABULARY)
    if "model" not in told:
        raise ConfigError(f"{file} has no 'model': it is no tokenizer; copy it again from where the model comes from")
    last = _last_token(told)
    if last >= vocab:
        raise ConfigError(
            f"{file} has tokens up to {last}, but vocab_size in config.json is {vocab}: the two are not of one model; fetch both again"
        )


def _last_token(tokenizer: Mapping[str, Any]) -> int:
    """The highest id that a tokenizer.json names; −1 where its form is another one."""
    model = tokenizer["model"]
    words = model.get("vocab") if isinstance(model, dict) else None
    ids = list(words.values()) if isinstance(words, dict) else []
    added = tokenizer.get("added_tokens")
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return max((i for i in ids if isinstance(i, int)), default=-1)


def _expect_own_template(directory: Path) -> None:
    file, settings = directory / "chat_template.jinja", directory / "tokenizer_config.json"
    if file.is_file():
        expect_template(file.read_text("utf-8", "replace"), str(file))
    elif settings.is_file():
        text = read_json(settings, LONGEST_VOCABULARY).get("chat_template")
        if isinstance(text, str):
            expect_template(text, f"the chat_template in {settings}")


def expect_template(text: str, where: str) -> None:
    """Whether Jinja can read a chat template; it is not run. Raises ConfigError."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(_GENERATION.sub("", text))
    except TemplateError as error:
        raise ConfigError(
            f"{where} is no Jinja template ({error}): mend it, or name another with --chat-template"
        ) from error


def _expect_weights(directory: Path) -> None:
    if (directory / _WEIGHTS).is_file():
        return
    if not (directory / _INDEX).is_file():
        raise ConfigError(
            f"{directory} has neither {_WEIGHTS} nor {_INDEX}: only safetensors checkpoints are supported; --load-format dummy "
            "makes random weights of the config's shape"
        )
    places = read_json(directory / _INDEX, _LONGEST_INDEX).get("weight_map")
    if not isinstance(places, dict):
        raise ConfigError(f"{directory / _INDEX} has no weight_map: fetch it again")
    missing = sorted(name for name in set(map(str, places.values())) if not (directory / name).is_file())
    if missing:
        raise ConfigError(
            f"{directory} lacks {len(missing)} files that {_INDEX} names, such as {missing[0]}: fetch them"
        )


def expect_device(name: str) -> None:
    """Whether there is a GPU where one is asked for, as its driver says. Raises ConfigError."""
    if name == "cuda" and not gpus():
        raise ConfigError("--device cuda: no CUDA device is visible; use --device cpu")


def gpus() -> int:
    """How many GPUs the driver of CUDA shows to this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    seen = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if seen else 0


def expect_memory(config: EngineConfig) -> None:
    """Whether the memory that is asked for is free. Raises ConfigError."""
    free, host = available_memory(), config.host_memory
    if host > free:
        raise ConfigError(
            f"--host-memory {format_size(host)} is more than the {format_size(free)} that are free: ask for less"
        )
    device = config.device_memory or 0
    if host + device > free and (config.device == "cpu" or not gpus()):
        raise ConfigError(
            f"--device-memory {format_size(device)} and --host-memory {format_size(host)} are the same memory on a CPU, and more than "
            f"the {format_size(free)} that are free: ask for less"
        )
