"""The flags of `stepwell serve`: names that vLLM users already type, where they exist. Imports nothing heavy.

Each may also come from the environment (`--max-queue` is STEPWELL_MAX_QUEUE) or from a file (`--config`); the command line
counts before the environment, that before the file.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any, TypeVar

import typer

from stepwell.base.errors import ConfigError
from stepwell.server.settings import read_settings

ENVIRONMENT = "STEPWELL"
"""What the name of every variable begins with."""

_Command = TypeVar("_Command", bound=Callable[..., None])

_MODEL = "Model"
_CACHE = "Cache"
_SERVER = "Server"
_LIMITS = "Limits"
_LOGS = "Logs"


def _option(text: str, panel: str) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, show_default=True, show_envvar=False)


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


def like(model: Callable[..., None]) -> Callable[[_Command], _Command]:
    """Give a command, which takes `**values`, the parameters of another."""

    def give(command: _Command) -> _Command:
        command.__signature__ = signature(model, eval_str=True)  # type: ignore[attr-defined]
        return command

    return give


_MODEL_HELP = "Directory of a Hugging Face checkpoint, or the name of one on its Hub, such as Qwen/Qwen3.5-35B-A3B."
Model = Annotated[str, typer.Argument(help=_MODEL_HELP, envvar=f"{ENVIRONMENT}_MODEL", show_envvar=False)]
Config = Annotated[
    str | None,
    typer.Option(
        help="TOML file with a value for any flag here: max-queue = 64.",
        callback=_read_config,
        is_eager=True,
        show_envvar=False,
    ),
]
ServedModelName = Annotated[
    list[str] | None,
    _option(
        "Name that clients give; several may follow, the first is shown, * takes any name. Default: MODEL as written.",
        _MODEL,
    ),
]
Revision = Annotated[
    str | None, _option("Branch, tag or commit of a model of the Hub. Default: its main branch.", _MODEL)
]
DownloadDir = Annotated[
    str | None, _option("Where models of the Hub are kept. Default: where its client keeps them.", _MODEL)
]
Device = Annotated[str, _option("cpu, cuda, or auto: cuda where there is one.", _MODEL)]
Dtype = Annotated[str, _option("float32, bfloat16, float16, or auto: as in config.json.", _MODEL)]
KvCacheDtype = Annotated[
    str,
    _option("Type of keys and values: auto, the model's own, or fp8, which takes half of bfloat16's memory.", _MODEL),
]
StateDtype = Annotated[
    str,
    _option(
        "Type in which recurrent states are kept: float32, or bfloat16, which takes half and rounds at each step.",
        _MODEL,
    ),
]
LoadFormat = Annotated[
    str,
    _option(
        "auto or safetensors: read the files; dummy: random weights of the config's shape, for benchmarks.", _MODEL
    ),
]
MaxModelLen = Annotated[int | None, _option("Tokens of prompt and answer together. Default: from config.json.", _MODEL)]
TensorParallelSize = Annotated[int, _option("Ranks that share one model; 1 for now.", _MODEL)]
Seed = Annotated[int, _option("Seed of the engine itself; requests bring their own.", _MODEL)]
MaxNumSeqs = Annotated[int, _option("Sequences that run at once.", _MODEL)]
MaxNumBatchedTokens = Annotated[int, _option("Most tokens in one forward pass.", _MODEL)]

ChatTemplate = Annotated[
    str | None, _option("Path of a Jinja template for chats. Default: the checkpoint's own.", _MODEL)
]
DefaultChatTemplateKwargs = Annotated[
    str | None,
    _option("What the chat template is told where a call says nothing: '{\"enable_thinking\": false}'.", _MODEL),
]
PreserveThinking = Annotated[
    bool,
    _option(
        "Tell the template to keep the thoughts of earlier turns, if it can: a turn then goes on where it was.", _MODEL
    ),
]
PlainContent = Annotated[bool, _option("Words such as <|im_end|> are only text where they stand in messages.", _MODEL)]
LookAhead = Annotated[
    bool,
    _option("While nothing else is to be done, compute a conversation as its next turn will have it.", _CACHE),
]
GenerationConfig = Annotated[
    str,
    _option(
        "Where the sampling of calls that say nothing comes from: auto (the model's generation_config.json), none, or a PATH.",
        _MODEL,
    ),
]
OverrideGenerationConfig = Annotated[
    str | None, _option("Values that count before that file's, as JSON: '{\"temperature\": 0.6}'.", _MODEL)
]

AsyncScheduling = Annotated[
    str, _option("on: prepare a step while the one before computes; off; or auto: on with CUDA.", _MODEL)
]
MaxStepMs = Annotated[
    float, _option("Milliseconds that a step with answers in it may take for prompts; 0 for any time.", _MODEL)
]
EnforceEager = Annotated[bool, _option("Capture no CUDA graphs.", _MODEL)]
CudagraphCaptureSizes = Annotated[
    list[str] | None,
    _option("Numbers of decoding sequences to capture CUDA graphs for; by default 1, 2, 4 and multiples of 8.", _MODEL),
]
Deterministic = Annotated[
    bool,
    _option(
        "Compute in fixed shapes and decide nothing by measured speed: a prompt gives the same answer cold and resumed. Slower.",
        _MODEL,
    ),
]
NumSpeculativeTokens = Annotated[
    int,
    _option(
        "Tokens that the checkpoint's own layer for it (mtp.*) drafts for each answer and step; 0 for none. Answers stay the same.",
        _MODEL,
    ),
]

BlockSize = Annotated[int, _option("Tokens in a block, the unit of prefix matching.", _CACHE)]
RungGrid = Annotated[int, _option("Prompt rungs stand on multiples of this many tokens.", _CACHE)]
DeviceMemory = Annotated[
    str | None, _option("Size of the device arena, such as 8GiB. Overrides --gpu-memory-utilization.", _CACHE)
]
GpuMemoryUtilization = Annotated[float, _option("Share of GPU memory for weights, work and arena.", _CACHE)]
HostMemory = Annotated[str, _option("Size of the host tier, such as 32GiB; 0 switches it off.", _CACHE)]
DiskCache = Annotated[
    str | None,
    _option("Folder and size of the disk tier, such as /var/cache/stepwell:200GiB. It outlives the server.", _CACHE),
]
DiskWriteBudget = Annotated[
    str | None, _option("Bytes a second that may be written to it, such as 100MB. Default: no limit.", _CACHE)
]
DiskWriteWhen = Annotated[str, _option("idle: also while nothing is to be done; pressure: as memory fills up.", _CACHE)]
EnablePrefixCaching = Annotated[bool, _option("Reuse what earlier prompts have computed.", _CACHE)]
StateCheckpointIntervalTokens = Annotated[int, _option("A rung at least every so many prompt tokens.", _CACHE)]
DecodeRungTokens = Annotated[int, _option("Refresh the rung of a running answer every so many tokens.", _CACHE)]
CachePolicy = Annotated[
    str,
    _option("What goes first where memory is short: ladder or lru. `stepwell plan` compares them.", _CACHE),
]
MinLoadTokens = Annotated[
    int | None,
    _option("Load from a lower tier only what saves this many tokens. Default: by expected time.", _CACHE),
]
TenantShare = Annotated[
    float, _option("Share of each tier that one API key or salt may hold while others want it.", _CACHE)
]
VerifyHost = Annotated[
    float | None,
    _option(
        "Share of pages in host whose checksums are kept and compared. Default: 1 on the CPU, 0.01 on CUDA.", _CACHE
    ),
]
VerifyResume = Annotated[
    float, _option("Share of resumed prompts that an idle engine recomputes cold, to compare the answers.", _CACHE)
]
LoadTimeout = Annotated[
    float, _option("Seconds without news after which a copy is not waited for any longer; 0 for never.", _CACHE)
]
Coalesce = Annotated[bool, _option("A call waits for what another is computing, where that is sooner.", _CACHE)]
PriorityAgeing = Annotated[float, _option("Seconds of waiting that are worth one step of a call's priority.", _LIMITS)]
FairSalts = Annotated[
    bool | None, _option("Callers that wait take turns, by cache_salt. Default: with --salt-per-key.", _LIMITS)
]
Fault = Annotated[
    list[str] | None, typer.Option("--fault", hidden=True, help="For tests: see stepwell.testing.faultspec.")
]

Host = Annotated[str, _option("Address to listen on; 0.0.0.0 for all.", _SERVER)]
Port = Annotated[int, _option("Port to listen on; 0 for any free one.", _SERVER)]
ApiKey = Annotated[
    list[str] | None,
    _option(
        "A key that callers must send; may be given several times. Better from the environment or a file.", _SERVER
    ),
]
SaltPerKey = Annotated[bool, _option("Each key has a cache of its own.", _SERVER)]
AllowedOrigins = Annotated[
    list[str] | None, _option("Web origin that may call (CORS), or *; may be given several times.", _SERVER)
]
AllowCacheReset = Annotated[bool, _option("Let callers empty the cache: POST /cache/reset.", _SERVER)]

MaxQueue = Annotated[int, _option("Sequences that may wait; more are answered with 503.", _LIMITS)]
MaxBodySize = Annotated[str, _option("Largest request body, such as 8MB; larger ones are answered with 413.", _LIMITS)]
ResponseStore = Annotated[
    str, _option("Memory for responses that later calls may name, such as 64MiB; 0 keeps none.", _LIMITS)
]
Batches = Annotated[
    str | None,
    _option("Folder and size for callers' files and batches, such as /var/lib/stepwell:10GiB. Default: none.", _LIMITS),
]
BodyTimeout = Annotated[
    float, _option("Seconds in which a body must arrive; later ones are answered with 408.", _LIMITS)
]
QueueTimeout = Annotated[
    float | None, _option("Seconds that a call may wait to be admitted, then 503. Default: any time.", _LIMITS)
]
RequestTimeout = Annotated[float | None, _option("Seconds that a call may take, then 408. Default: any time.", _LIMITS)]
KeepAliveTimeout = Annotated[int, _option("Seconds that an idle connection is kept.", _LIMITS)]
DrainTimeout = Annotated[float, _option("Seconds that open calls may go on after SIGTERM.", _LIMITS)]
ShutdownTimeout = Annotated[float, _option("Seconds that the engine then has to end before it is killed.", _LIMITS)]
LogLevel = Annotated[str, _option("debug, info, warning or error.", _LOGS)]
LogFormat = Annotated[str, _option("text, or json: one object a line.", _LOGS)]
MetricsCompat = Annotated[
    str, _option("vllm: show metrics also under the names that vLLM's Grafana board reads.", _LOGS)
]
OtlpEndpoint = Annotated[
    str | None,
    _option("Collector of OpenTelemetry to send traces to, such as http://127.0.0.1:4318 (OTLP over HTTP).", _LOGS),
]

BatchFile = Annotated[str, typer.Argument(help="File of calls, one a line, as OpenAI's batches have them.")]
BatchOutput = Annotated[
    str | None, typer.Option(help="File that answers are added to. Default: FILE.out.", show_envvar=False)
]
BatchUrl = Annotated[str, typer.Option(help="URL of the server.", show_envvar=False)]
AtOnce = Annotated[int, typer.Option(help="Calls that are open at once.", min=1, show_envvar=False)]

Target = Annotated[str, typer.Argument(help="URL of a server, or directory of a checkpoint.")]
ChatKey = Annotated[str, typer.Option(help="Key of the server. Better from STEPWELL_API_KEY.", show_envvar=False)]
System = Annotated[str, typer.Option(help="Instructions for the model.", show_envvar=False)]
ChatTokens = Annotated[
    int | None,
    typer.Option(help="Most tokens of an answer. Default: what the context has room for.", show_envvar=False),
]
Temperature = Annotated[float, typer.Option(help="0 for the likeliest token each time.", min=0, show_envvar=False)]
