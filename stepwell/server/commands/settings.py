"""Flags from a TOML file, variables that no flag has, and what the standard variables say of where traces go."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stepwell.base.errors import ConfigError

_LARGEST = 1 << 20
_SPANS = "/v1/traces"
_OURS = "STEPWELL_"
_OF_KUBERNETES = re.compile(
    r"STEPWELL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)"
)


@dataclass(frozen=True, slots=True)
class TraceTarget:
    """Where spans are sent, whole URL. `asked`: by the flag, so that it is an error where they cannot be."""

    url: str
    asked: bool


def trace_target(base: str | None, environment: Mapping[str, str]) -> TraceTarget | None:
    """From --otlp-endpoint, else from the variables that OpenTelemetry names for it. Raises ConfigError."""
    if base:
        return TraceTarget(_spans_below(base, "--otlp-endpoint"), True)
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    whole, base = (environment.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("TRACES_ENDPOINT", "ENDPOINT"))
    if whole:
        return TraceTarget(_checked(whole, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), False)
    return TraceTarget(_spans_below(base, "OTEL_EXPORTER_OTLP_ENDPOINT"), False) if base else None


def _spans_below(base: str, name: str) -> str:
    base = _checked(base, name).rstrip("/")
    return base if base.endswith(_SPANS) else base + _SPANS


def _checked(url: str, name: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{name} {url!r} is no URL of a collector: give one such as http://127.0.0.1:4318")
    return url


def read_settings(path: str, known: Mapping[str, bool]) -> dict[str, Any]:
    """Values by the name of the parameter, as in `{"max_queue": 64}`, from lines such as `max-queue = 64`.

    known  names that may stand there, and whether each takes a list
    Raises ConfigError: the file cannot be read, a name is unknown, or a value is of a kind that no flag takes.
    """
    settings: dict[str, Any] = {}
    for key, value in _load(path).items():
        name = key.replace("-", "_")
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0].replace('_', '-')}?" if close else ": write flags without their dashes"
            raise ConfigError(f"{path}: {key!r} is no flag{hint}")
        if name in settings:
            raise ConfigError(f"{path}: {key!r} is there twice, with - and with _: leave one out")
        settings[name] = _value(path, key, value, known[name])
    return settings


def expect_variables(environment: Mapping[str, str], known: Collection[str]) -> None:
    """Raises ConfigError if a variable begins as ours do and is none of them. Those that Kubernetes sets for a service that is called
    stepwell are passed over."""
    for name in sorted(environment):
        if name.startswith(_OURS) and name not in known and not _OF_KUBERNETES.fullmatch(name):
            close = get_close_matches(name.removeprefix(_OURS), [one.removeprefix(_OURS) for one in known], 1)
            hint = f"did you mean {_OURS}{close[0]}?" if close else "unset it, or see `stepwell serve --help`"
            raise ConfigError(f"the variable {name} is set, which no flag has: {hint}")


def _load(path: str) -> dict[str, Any]:
    file = Path(path)
    try:
        if file.stat().st_size > _LARGEST:
            raise ConfigError(f"{path} has more than {_LARGEST:,} bytes: that is no file of flags")
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _value(path: str, key: str, value: object, many: bool) -> Any:
    if many:
        items = value if isinstance(value, list) else [value]
        if all(isinstance(item, str) for item in items):
            return items
        raise ConfigError(f"{path}: {key} must be a string or a list of strings")
    if not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{path}: {key} must be a number, a string, true or false, not {type(value).__name__}")
    return value
