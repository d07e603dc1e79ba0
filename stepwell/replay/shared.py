"""The flags that `stepwell replay` and `stepwell plan` have in common, with their defaults: what is played, on which machine."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import TypeVar

from stepwell.replay import flags
from stepwell.replay.eviction import DEFAULT as DEFAULT_POLICY
from stepwell.replay.profile import DEFAULT

_Command = TypeVar("_Command", bound=Callable[..., None])


def played(
    lanes: flags.LaneCount = 56,
    warmup: flags.Warmup = 900.0,
    duration: flags.Duration = 3600.0,
    seed: flags.Seed = 0,
    start: flags.Start = (0.25, 0.75),
    once: flags.Once = False,
    think_cap: flags.ThinkCap = 300.0,
    idle_gap_cap: flags.IdleGapCap = None,
    max_prompt: flags.MaxPrompt = 256_000,
    conversations: flags.Conversations = 200,
    scale: flags.Scale = 1.0,
    turns: flags.Turns = 46.0,
    agents: flags.Agents = 0.005,
    fan_out: flags.FanOut = 1,
    profile: flags.ProfileName = DEFAULT,
    rung_tokens: flags.RungTokens = None,
    block_size: flags.BlockSize = 64,
    rung_grid: flags.RungGrid = 64,
    state_checkpoint_interval_tokens: flags.Interval = 8192,
    decode_rung_tokens: flags.DecodeRungTokens = None,
    max_num_seqs: flags.MaxNumSeqs = 64,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = 16_384,
    coalesce: flags.Coalesce = True,
    policy: flags.Policies = [DEFAULT_POLICY],  # noqa: B006 (typer copies it)
    peer_failure_rate: flags.PeerFailureRate = 0.0,
) -> None:
    """Parameters alone: see `with_played`."""


def with_played(command: _Command) -> _Command:
    """Give a command, which takes `**shared`, the parameters of `played` that it does not have itself; all stand in `ctx.params`."""
    own = [p for p in signature(command, eval_str=True).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    names = {p.name for p in own}
    common = [p for p in signature(played, eval_str=True).parameters.values() if p.name not in names]
    needed = [p for p in own if p.default is Parameter.empty]
    optional = [p for p in own if p.default is not Parameter.empty]
    command.__signature__ = Signature([*needed, *common, *optional])  # type: ignore[attr-defined]
    return command
