"""The checked options of `stepwell serve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stepwell.base.errors import ConfigError
from stepwell.base.units import parse_size
from stepwell.engine.config import EngineConfig, flag
from stepwell.engine.hub import local_model
from stepwell.engine.logs import LogFormat
from stepwell.engine.process.spawn import DEFAULT_FACTORY
from stepwell.server.commands.preflight import engine_of
from stepwell.server.commands.settings import TraceTarget, trace_target
from stepwell.server.generation.answers import Patience
from stepwell.server.http.keys import Keys
from stepwell.server.http.parts import Limits
from stepwell.server.prompt.template_use import TemplateUse, template_use
from stepwell.server.read.defaults import AUTO
from stepwell.server.read.names import ServedNames

METRICS_COMPAT = ("none", "vllm")


@dataclass(frozen=True, slots=True)
class Endings:
    """Seconds that each part of the end may take.

    drain      open calls may go on, once no new ones are taken
    engine     the engine may take to write what it wants to keep, before it is killed
    keep_alive a connection may be idle, while the server runs
    dead       the server still says why, after its engine has died
    """

    drain: float = 20.0
    engine: float = 30.0
    keep_alive: int = 75
    dead: float = 30.0


@dataclass(frozen=True, slots=True)
class Care:
    """How the front end looks after its engine.

    silence   seconds without a sign of life after which its process hangs; 0: never
    turn      seconds in one turn of its loop after which that hangs; 0: never
    restart   start it again where it has ended or hangs, `restarts` times at most within ten minutes
    """

    silence: float = 10.0
    turn: float = 300.0
    restart: bool = False
    restarts: int = 5


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve, and where. `given` are the names of the config's fields that the user set."""

    config: EngineConfig
    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = field(default_factory=Limits)
    patience: Patience = field(default_factory=Patience)
    endings: Endings = field(default_factory=Endings)
    keys: Keys = field(default_factory=Keys)
    origins: tuple[str, ...] = ()
    allow_reset: bool = False
    log_format: LogFormat = "text"
    given: frozenset[str] = frozenset()
    factory: str = DEFAULT_FACTORY
    traces: TraceTarget | None = None
    names: ServedNames | None = None
    batches: str | None = None
    metrics_compat: str = "none"
    generation_config: str = AUTO
    generation_override: str | None = None
    template: TemplateUse = field(default_factory=TemplateUse)
    care: Care = field(default_factory=Care)


def options_from(
    values: Mapping[str, Any], given: frozenset[str], environment: Mapping[str, str] | None = None
) -> ServeOptions:
    """Options from the flags of `stepwell serve` by name; `environment` may say where traces go. Raises ConfigError, naming the flag."""
    names = ServedNames.of(values["served_model_name"] or (), values["model"])
    config = replace(engine_of(values), served_model_name=names.first)
    for name in ("body_timeout", "queue_timeout", "request_timeout"):
        if values[name] is not None and not values[name] > 0:
            raise ConfigError(f"{flag(name)} must be above 0 seconds, not {values[name]:g}")
    for name in ("drain_timeout", "shutdown_timeout", "hang_timeout", "step_timeout"):
        if not values[name] >= 0:
            raise ConfigError(f"{flag(name)} must be at least 0 seconds, not {values[name]:g}")
    return ServeOptions(
        config,
        values["host"],
        values["port"],
        _limits(values),
        Patience(values["queue_timeout"], values["request_timeout"]),
        Endings(values["drain_timeout"], values["shutdown_timeout"], values["keep_alive_timeout"]),
        Keys(values["api_key"] or (), values["salt_per_key"], values["metrics_key"]),
        _origins(values["allowed_origins"] or ()),
        values["allow_cache_reset"],
        values["log_format"],
        given,
        traces=trace_target(values["otlp_endpoint"], environment or {}),
        names=names,
        batches=values["batches"],
        metrics_compat=_choice("metrics_compat", values["metrics_compat"], METRICS_COMPAT),
        generation_config=values["generation_config"],
        generation_override=values["override_generation_config"],
        template=template_use(values),
        care=Care(
            values["hang_timeout"], values["step_timeout"], values["restart_engine"], values["max_engine_restarts"]
        ),
    )


def with_local_model(values: Mapping[str, Any], fetch: bool) -> dict[str, Any]:
    """The same with the model's directory, and served under the name by which it was asked for. Raises ConfigError.

    fetch  a model of the Hub is fetched where it is not in the cache of the Hub's client
    """
    asked = values["model"]
    model = local_model(asked, values["revision"], values["download_dir"], fetch)
    return {**values, "model": model, "served_model_name": values["served_model_name"] or [asked]}


def _choice(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ConfigError(f"{flag(name)} {value!r} is unknown: use one of {', '.join(known)}")
    return value


def _limits(values: Mapping[str, Any]) -> Limits:
    limits = Limits(
        parse_size(values["max_body_size"]),
        values["body_timeout"],
        values["max_queue"],
        parse_size(values["response_store"]),
    )
    if limits.body_bytes < 1:
        raise ConfigError("--max-body-size must be at least 1")
    return limits


def _origins(given: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    for origin in given:
        if origin != "*" and "://" not in origin:
            raise ConfigError(
                f"--allowed-origins {origin!r} is no origin: write * or a scheme and a host, such as https://example.org"
            )
    return tuple(given)
