"""Every setting of `stepwell serve` and `stepwell doctor`, declared once: names that vLLM users already type, where they exist.

A line gives the flag (`--max-queue`), the variable (`STEPWELL_MAX_QUEUE`), the key in a file (`max-queue = 64`), type, range, default, help
and the group in which the help shows it. The command line counts before the environment, that before the file. Imports nothing heavy.
What depends on several settings, or is also asked of `stepwell.LLM`, is checked by `EngineConfig`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from stepwell.base.errors import ConfigError
from stepwell.server.commands.settings import read_settings

ENVIRONMENT = "STEPWELL"
"""What the name of every variable begins with."""

_MODEL_HELP = "Directory of a Hugging Face checkpoint, or the name of one on its Hub, such as Qwen/Qwen3.5-35B-A3B."


def _setting(group: str, text: str, least: int | None = None, most: int | None = None) -> Any:
    return typer.Option(help=text, rich_help_panel=group, show_default=True, show_envvar=False, min=least, max=most)


_model = partial(_setting, "Model")
_memory = partial(_setting, "Memory")
_cache = partial(_setting, "Cache")
_scheduling = partial(_setting, "Scheduling")
_server = partial(_setting, "Server")
_logs = partial(_setting, "Logs")
_expert = partial(_setting, "Expert")


def _read_config(ctx: typer.Context, path: str | None) -> str | None:
    """Let the file's values stand where a default would."""
    if path is not None:
        try:
            ctx.default_map = read_settings(path, {p.name: p.multiple for p in _settable(ctx)})
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
    return path


def _settable(ctx: typer.Context) -> list[Any]:
    return [param for param in ctx.command.params if param.name not in ("config", "help")]


class ServeSettings:
    """What each annotation says becomes a parameter of the command (`stepwell.server.commands.flags.like`); the value is its default."""

    # Model
    model: Annotated[str, typer.Argument(help=_MODEL_HELP, envvar=f"{ENVIRONMENT}_MODEL", show_envvar=False)]
    config: Annotated[
        str | None,
        typer.Option(
            help="TOML file with a value for any flag here: max-queue = 64.",
            callback=_read_config,
            is_eager=True,
            rich_help_panel="Model",
            show_envvar=False,
        ),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        _model(
            "Name that clients give; several may follow, the first is shown, * takes any name. Default: MODEL as written."
        ),
    ] = None
    revision: Annotated[
        str | None, _model("Branch, tag or commit of a model of the Hub. Default: its main branch.")
    ] = None
    download_dir: Annotated[
        str | None, _model("Where models of the Hub are kept. Default: where its client keeps them.")
    ] = None
    device: Annotated[str, _model("cpu, cuda, or auto: cuda where there is one.")] = "auto"
    dtype: Annotated[str, _model("float32, bfloat16, float16, or auto: as in config.json.")] = "auto"
    max_model_len: Annotated[int | None, _model("Tokens of prompt and answer together. Default: from config.json.")] = (
        None
    )
    tensor_parallel_size: Annotated[
        int, _model("Devices that share the model, each with a process of its own; 1: no further process.")
    ] = 1
    worker_timeout: Annotated[
        float,
        _model(
            "Seconds after which the engine ends if such a process shows no life, or the others wait for it; 0: never."
        ),
    ] = 4.0
    num_speculative_tokens: Annotated[
        int,
        _model(
            "Tokens that the checkpoint's own layer for it (mtp.*) drafts for each answer and step; 0 for none. Answers stay the same."
        ),
    ] = 0
    generation_config: Annotated[
        str,
        _model(
            "Where the sampling of calls that say nothing comes from: auto (the model's generation_config.json), none, or a PATH."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        str | None, _model("Values that count before that file's, as JSON: '{\"temperature\": 0.6}'.")
    ] = None
    chat_template: Annotated[
        str | None, _model("Path of a Jinja template for chats. Default: the checkpoint's own.")
    ] = None
    default_chat_template_kwargs: Annotated[
        str | None, _model("What the chat template is told where a call says nothing: '{\"enable_thinking\": false}'.")
    ] = None
    preserve_thinking: Annotated[
        bool,
        _model("Tell the template to keep the thoughts of earlier turns, if it can: a turn then goes on where it was."),
    ] = True

    # Memory
    device_memory: Annotated[
        str | None, _memory("Size of the device arena, such as 8GiB. Overrides --gpu-memory-utilization.")
    ] = None
    gpu_memory_utilization: Annotated[float, _memory("Share of GPU memory for weights, work and arena.")] = 0.9
    host_memory: Annotated[str, _memory("Size of the host tier, such as 32GiB; 0 switches it off.")] = "4GiB"
    disk_cache: Annotated[
        str | None,
        _memory("Folder and size of the disk tier, such as /var/cache/stepwell:200GiB. It outlives the server."),
    ] = None
    kv_offload: Annotated[
        str,
        _memory(
            "native: host and disk of this server; lmcache: below them LMCache too, by its own LMCACHE_* settings, shared by servers."
        ),
    ] = "native"
    lmcache_lookup: Annotated[
        str,
        _memory(
            "Ranks that LMCache is asked on before a load, and holds what it has found on: all, or rank0 to compare."
        ),
    ] = "all"
    lmcache_partial_chunk: Annotated[
        str,
        _memory(
            "Part of an LMCache chunk that the device has already: private loads it into pages of the request's own; drop leaves it out."
        ),
    ] = "private"
    kv_events_endpoint: Annotated[
        str | None,
        _memory(
            "Publish what the cache holds, in vLLM's form of KV events, on such an endpoint: tcp://127.0.0.1:5557."
        ),
    ] = None
    kv_events_replay_endpoint: Annotated[
        str | None, _memory("Endpoint on which who has missed some of them asks for them again.")
    ] = None
    kv_events_topic: Annotated[str, _memory("Topic under which they are published.")] = ""
    disk_write_budget: Annotated[
        str | None, _memory("Bytes a second that may be written to it, such as 100MB. Default: no limit.")
    ] = None
    disk_write_when: Annotated[
        str, _memory("idle: also while nothing is to be done; pressure: as memory fills up.")
    ] = "idle"
    kv_cache_dtype: Annotated[
        str, _memory("Type of keys and values: auto, the model's own, or fp8, which takes half of bfloat16's memory.")
    ] = "auto"
    calculate_kv_scales: Annotated[
        bool, _memory("Scale FP8 keys and values head by head, calibrated on a prompt at the start; else by 1.")
    ] = False
    state_dtype: Annotated[
        str,
        _memory(
            "Type in which recurrent states are kept: float32, or bfloat16, which takes half and rounds at each step."
        ),
    ] = "float32"

    # Cache
    enable_prefix_caching: Annotated[bool, _cache("Reuse what earlier prompts have computed.")] = True
    state_checkpoint_interval_tokens: Annotated[int, _cache("A rung at least every so many prompt tokens.")] = 8192
    decode_rung_tokens: Annotated[int, _cache("Refresh the rung of a running answer every so many tokens.")] = 16
    min_load_tokens: Annotated[
        int | None, _cache("Load from a lower tier only what saves this many tokens. Default: by expected time.")
    ] = None
    tenant_share: Annotated[
        float, _cache("Share of each tier that one API key or salt may hold while others want it.")
    ] = 1.0
    look_ahead: Annotated[
        bool, _cache("While nothing else is to be done, compute a conversation as its next turn will have it.")
    ] = True
    coalesce: Annotated[bool, _cache("A call waits for what another is computing, where that is sooner.")] = True
    verify_resume: Annotated[
        float, _cache("Share of resumed prompts that an idle engine recomputes cold, to compare the answers.")
    ] = 0.0

    # Scheduling
    max_num_seqs: Annotated[int, _scheduling("Sequences that run at once.")] = 32
    max_num_batched_tokens: Annotated[int, _scheduling("Most tokens in one forward pass.")] = 2048
    max_step_ms: Annotated[
        float, _scheduling("Milliseconds that a step with answers in it may take for prompts; 0 for any time.")
    ] = 200.0
    max_queue: Annotated[int, _scheduling("Sequences that may wait; more are answered with 503.", 1)] = 1024
    priority_ageing: Annotated[
        float, _scheduling("Seconds of waiting that are worth one step of a call's priority.")
    ] = 10.0
    fair_salts: Annotated[
        bool | None, _scheduling("Callers that wait take turns, by cache_salt. Default: with --salt-per-key.")
    ] = None
    queue_timeout: Annotated[
        float | None, _scheduling("Seconds that a call may wait to be admitted, then 503. Default: any time.")
    ] = None
    request_timeout: Annotated[
        float | None, _scheduling("Seconds that a call may take, then 408. Default: any time.")
    ] = None

    # Server
    host: Annotated[str, _server("Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, _server("Port to listen on; 0 for any free one.", 0, 65535)] = 8000
    api_key: Annotated[
        list[str] | None,
        _server("A key that callers must send; may be given several times. Better from the environment or a file."),
    ] = None
    salt_per_key: Annotated[bool, _server("Each key has a cache of its own.")] = False
    metrics_key: Annotated[
        str | None, _server("A key that /metrics needs, and that opens nothing else. Default: none is needed.")
    ] = None
    allowed_origins: Annotated[
        list[str] | None, _server("Web origin that may call (CORS), or *; may be given several times.")
    ] = None
    allow_cache_reset: Annotated[bool, _server("Let callers empty the cache: POST /cache/reset.")] = False
    max_body_size: Annotated[str, _server("Largest request body, such as 8MB; larger ones are answered with 413.")] = (
        "8MB"
    )
    body_timeout: Annotated[
        float, _server("Seconds in which a header must arrive, then a body; a later body is answered with 408.")
    ] = 60
    keep_alive_timeout: Annotated[int, _server("Seconds that an idle connection is kept.", 0)] = 75
    response_store: Annotated[
        str, _server("Memory for responses that later calls may name, such as 64MiB; 0 keeps none.")
    ] = "64MiB"
    batches: Annotated[
        str | None,
        _server("Folder and size for callers' files and batches, such as /var/lib/stepwell:10GiB. Default: none."),
    ] = None
    drain_timeout: Annotated[float, _server("Seconds that open calls may go on after SIGTERM.")] = 20
    shutdown_timeout: Annotated[float, _server("Seconds that the engine then has to end before it is killed.")] = 30
    hang_timeout: Annotated[
        float, _server("Seconds without a sign of life after which the engine's process hangs; 0: never.")
    ] = 10
    step_timeout: Annotated[float, _server("Seconds in one step after which the engine hangs; 0: never.")] = 300
    restart_engine: Annotated[
        bool, _server("Start an engine that has ended or hangs again; its open calls end with an error.")
    ] = False
    max_engine_restarts: Annotated[int, _server("Times that this may happen within ten minutes.", 1)] = 5

    # Logs
    log_level: Annotated[str, _logs("debug, info, warning or error.")] = "info"
    log_format: Annotated[str, _logs("text, or json: one object a line.")] = "text"
    metrics_compat: Annotated[
        str, _logs("vllm: show metrics also under the names that vLLM's Grafana board reads.")
    ] = "none"
    otlp_endpoint: Annotated[
        str | None,
        _logs("Collector of OpenTelemetry to send traces to, such as http://127.0.0.1:4318 (OTLP over HTTP)."),
    ] = None

    # Expert
    load_format: Annotated[
        str,
        _expert("auto or safetensors: read the files; dummy: random weights of the config's shape, for benchmarks."),
    ] = "auto"
    seed: Annotated[int, _expert("Seed of the engine itself; requests bring their own.")] = 0
    block_size: Annotated[int, _expert("Tokens in a block, the unit of prefix matching.")] = 16
    rung_grid: Annotated[int, _expert("Prompt rungs stand on multiples of this many tokens.")] = 64
    async_scheduling: Annotated[
        str, _expert("on: prepare a step while the one before computes; off; or auto: on with CUDA.")
    ] = "auto"
    enforce_eager: Annotated[bool, _expert("Capture no CUDA graphs.")] = False
    disable_custom_all_reduce: Annotated[
        bool, _expert("Sum over several GPUs by NCCL alone, never in each other's memory.")
    ] = False
    cudagraph_capture_sizes: Annotated[
        list[str] | None,
        _expert("Numbers of decoding sequences to capture CUDA graphs for; by default 1, 2, 4 and multiples of 8."),
    ] = None
    deterministic: Annotated[
        bool,
        _expert(
            "Compute in fixed shapes and decide nothing by measured speed: a prompt gives the same answer cold and resumed. Slower."
        ),
    ] = False
    plain_content: Annotated[bool, _expert("Words such as <|im_end|> are only text where they stand in messages.")] = (
        True
    )
    verify_host: Annotated[
        float | None,
        _expert("Share of pages in host whose checksums are kept and compared. Default: 1 on the CPU, 0.01 on CUDA."),
    ] = None
    load_timeout: Annotated[
        float, _expert("Seconds without news after which a copy is not waited for any longer; 0 for never.")
    ] = 30.0
    faults: Annotated[
        list[str] | None, typer.Option("--fault", hidden=True, help="For tests: see stepwell.testing.faultspec.")
    ] = None
