"""From flags to what a replay is made of. `params` are a command's parameters by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepwell.base.errors import ConfigError
from stepwell.base.units import parse_size
from stepwell.replay.formats import read_trace
from stepwell.replay.idle import CappedIdle
from stepwell.replay.lanes import LaneRules, Lanes, Source, Timeline
from stepwell.replay.machine import MachineSizes
from stepwell.replay.profile import Profile
from stepwell.replay.simulate import Phases
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.trace import Trace

Params = Mapping[str, Any]

SYNTHETIC = "synthetic"
_MOST_TOKENS = 1e15
_NOT_SETTINGS = frozenset({"json_line", "json_file", "html", "convert", "convert_to", "api_key", "jobs"})


def trace_from(params: Params) -> Trace:
    """The trace that was named, read or made up. Raises ConfigError."""
    if params["trace"] == SYNTHETIC:
        turns = (params["turns"], Shape().turns[1])
        shape = Shape(scale=params["scale"], turns=turns, agents=params["agents"], fan_out=params["fan_out"])
        return synthetic(params["conversations"], params["seed"], shape)
    return read_trace(Path(params["trace"]))


def rules_from(params: Params) -> LaneRules:
    """How conversations are played. Raises ConfigError."""
    return LaneRules(
        params["lanes"], params["start"], params["think_cap"], params["max_prompt"], params["seed"], params["once"]
    )


def phases_from(params: Params) -> Phases:
    return Phases(params["warmup"], params["duration"])


def source_from(trace: Trace, rules: LaneRules, idle_gap_cap: float | None) -> Source:
    """Who is asked for requests."""
    source = Timeline(trace, rules.max_prompt) if trace.open_loop else Lanes(trace.conversations, rules)
    return source if idle_gap_cap is None else CappedIdle(source, idle_gap_cap)


def sizes_from(params: Params, profile: Profile, policy: str) -> MachineSizes:
    """Memory and rules of the imagined machine. Raises ConfigError."""
    kv = profile.costs.kv_bytes_per_token
    device = tokens_in(params["device_tokens"], "--device-tokens", kv)
    if device < params["block_size"]:
        page = params["block_size"]
        raise ConfigError(f"--device-tokens {params['device_tokens']} holds no page of {page} tokens: raise it")
    return MachineSizes(
        device_tokens=device,
        host_tokens=tokens_in(params["host_tokens"], "--host-tokens", kv),
        disk_tokens=tokens_in(params["disk_tokens"], "--disk-tokens", kv),
        rung_tokens=params["rung_tokens"] or profile.rung_tokens,
        block=params["block_size"],
        rung_grid=params["rung_grid"],
        interval=params["state_checkpoint_interval_tokens"],
        decode_rung_tokens=params["decode_rung_tokens"],
        max_num_seqs=params["max_num_seqs"],
        max_num_batched_tokens=params["max_num_batched_tokens"],
        coalesce=params["coalesce"],
        policy=policy,
        peer_failure_rate=params["peer_failure_rate"],
    )


def tokens_in(text: str, flag: str, kv_bytes_per_token: int) -> int:
    """`"8e6"` tokens, or as many as `"60GiB"` hold. Raises ConfigError."""
    try:
        value = float(text)
    except ValueError:
        if not text.strip().lower().endswith("b"):
            raise ConfigError(f"{flag} must be tokens, such as 8e6, or memory, such as 60GiB; not {text!r}") from None
        value = parse_size(text) / kv_bytes_per_token
    if not 0 <= value <= _MOST_TOKENS:
        raise ConfigError(f"{flag} must be from 0 to {_MOST_TOKENS:g} tokens, not {text}")
    return int(value)


def settings_of(params: Params) -> tuple[tuple[str, str], ...]:
    """What was asked for, to be shown with the figures; no secrets, nothing that changes no figure."""
    told = ((name, value) for name, value in params.items() if name not in _NOT_SETTINGS and value is not None)
    return tuple((name, " ".join(map(str, v)) if isinstance(v, tuple | list) else str(v)) for name, v in told)
