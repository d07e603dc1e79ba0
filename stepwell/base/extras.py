"""The extras of the package: which modules each brings, and the sentence that names the one a command lacks."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from stepwell.base.errors import ConfigError

MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "client": ("openai",),
        "engine": (
            "torch",
            "transformers",
            "safetensors",
            "tokenizers",
            "fastapi",
            "uvicorn",
            "zmq",
            "msgspec",
            "orjson",
        ),
        "lmcache": ("lmcache",),
    }
)
"""Modules that are looked for, by extra: enough of them to tell whether it was installed."""


def expect_extra(extra: str, command: str) -> None:
    """Raise ConfigError unless the modules of `extra` are installed. `command` is what the user typed. Imports none of them."""
    missing = [module for module in MODULES[extra] if find_spec(module) is None]
    if missing:
        raise ConfigError(f"{command} needs {missing[0]}, which is not installed: pip install 'stepwell[{extra}]'")
