"""`stepwell`: one function a command, each of which imports what it needs. The environment is read here and nowhere else."""

from __future__ import annotations

import logging

import typer
from rich.console import Console
from rich.markup import escape

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.replay.command import replay_command
from stepwell.server import flags

_LOG_LEVELS = ("debug", "info", "warning", "error")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Serve hybrid language models from a prompt cache that reaches from device memory through host memory."""


@app.command()
def serve(
    ctx: typer.Context,
    model: flags.Model,
    served_model_name: flags.ServedModelName = None,
    device: flags.Device = "auto",
    dtype: flags.Dtype = "auto",
    max_model_len: flags.MaxModelLen = None,
    tensor_parallel_size: flags.TensorParallelSize = 1,
    seed: flags.Seed = 0,
    max_num_seqs: flags.MaxNumSeqs = 32,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = 2048,
    block_size: flags.BlockSize = 16,
    rung_grid: flags.RungGrid = 64,
    device_memory: flags.DeviceMemory = None,
    gpu_memory_utilization: flags.GpuMemoryUtilization = 0.9,
    host_memory: flags.HostMemory = "4GiB",
    enable_prefix_caching: flags.EnablePrefixCaching = True,
    state_checkpoint_interval_tokens: flags.StateCheckpointIntervalTokens = 8192,
    decode_rung_tokens: flags.DecodeRungTokens = 16,
    min_load_tokens: flags.MinLoadTokens = None,
    host: flags.Host = "127.0.0.1",
    port: flags.Port = 8000,
    max_queue: flags.MaxQueue = 1024,
    max_body_size: flags.MaxBodySize = "8MB",
    log_level: flags.LogLevel = "warning",
) -> None:
    """Serve MODEL over the OpenAI API."""
    from stepwell.server.serve import options_from, serve

    given = frozenset(name for name in ctx.params if _is_given(ctx, name))
    try:
        _log_at(log_level)
        status = serve(options_from(ctx.params, given), Console())
    except StepwellError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(2) from None
    raise typer.Exit(status)


app.command("replay")(replay_command)


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether the user set this parameter, on the command line or elsewhere."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _log_at(level: str) -> None:
    if level not in _LOG_LEVELS:
        raise ConfigError(f"--log-level {level!r} is unknown: use one of {', '.join(_LOG_LEVELS)}")
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s")
