"""Every flag of an engine, checked once, and what a built engine tells about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from stepwell.base.errors import ConfigError
from stepwell.base.units import format_size, parse_size
from stepwell.model.ends import Ends

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = ("auto", "bfloat16", "bf16", "fp8", "fp8_e4m3")
STATE_DTYPES = ("float32", "bfloat16")
DISK_WHEN = ("idle", "pressure")
KV_OFFLOADS = ("native", "lmcache")
LMCACHE_LOOKUPS = ("all", "rank0")
LMCACHE_PARTIAL_CHUNKS = ("private", "drop")
LOAD_FORMATS = ("auto", "safetensors", "dummy")
SWITCH = ("auto", "on", "off")
_SIZES = ("device_memory", "host_memory", "disk_write_budget")
_AT_LEAST_ONE = (
    "block_size",
    "rung_grid",
    "tensor_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "decode_rung_tokens",
)


@dataclass(frozen=True, slots=True)
class DiskCache:
    """Where the disk tier is and how much it may take, in bytes."""

    path: str
    bytes: int

    @classmethod
    def parse(cls, text: str) -> DiskCache:
        """Read `PATH:SIZE`; the path may hold colons. Raises ConfigError."""
        path, colon, size = text.rpartition(":")
        form = "write PATH:SIZE, such as /var/cache/stepwell:200GiB"
        if not colon or not path:
            raise ConfigError(f"--disk-cache {text!r} needs a folder and a size: {form}")
        try:
            return cls(path, parse_size(size))
        except ConfigError as error:
            raise ConfigError(f"--disk-cache {text!r} ends in {size!r}, which is no size: {form}") from error

    def __str__(self) -> str:
        return f"{self.path}:{format_size(self.bytes).replace(' ', '')}"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to build an engine. Field `a_b` is the flag `--a-b`; a value that cannot work raises ConfigError, naming the flag.

    model                   directory of a Hugging Face checkpoint (config.json, *.safetensors, tokenizer.json)
    kv_cache_dtype          type of keys and values: "auto", the model's own; "fp8": e4m3, with scale 1 unless `calculate_kv_scales`
    calculate_kv_scales     a scale for each head of FP8 KV, calibrated on a prompt before the first page is published and kept with the
                            disk cache
    tensor_parallel_size    devices that share the model, each with a process of its own; 1: this process computes
    worker_timeout          seconds after which the engine ends if such a process gives no sign of life, or comes no further while others
                            do; 0: it never ends for that
    disable_custom_all_reduce  sum over GPUs by NCCL alone, never in each other's memory
    state_dtype             type in which recurrent states are kept, live and in images; they are computed in float32
    load_format             where weights come from: "auto" and "safetensors" read the checkpoint's files, "dummy" makes random ones
                            of the shape that config.json names, by `seed`: for benchmarks
    max_model_len           tokens of prompt and answer together; None: what config.json says
    device_memory           bytes for the device arena; None: `gpu_memory_utilization` of the device
    host_memory             bytes for the host tier; 0 switches it off
    disk_cache              folder and bytes of the disk tier; None: there is none
    kv_offload              "native": the tiers of this engine; "lmcache": below them LMCache as well, which engines can share
    disk_write_budget       bytes a second that may be written to it, averaged over seconds; None: as many as it takes
    disk_write_when         "idle": also whenever nothing else is to be done; "pressure": only as the tier above fills up
    tenant_share            share of a tier that one salt or API key may hold while others want it; 1: no bound
    min_load_tokens         load from a lower tier only what saves at least this many tokens; None: by expected time
    verify_host             share of pages in host, drawn as they are written, whose checksums are compared as they are read; None: all
                            on the CPU, one in a hundred on CUDA, whose link is faster than a checksum
    verify_resume           share of resumed prompts that are recomputed cold while nothing else is to be done, and compared
    load_timeout            seconds without a report after which a copy is not waited for any longer; 0: never
    async_scheduling        "on": build and launch a step while the one before computes; "auto": on with CUDA, off on the CPU
    max_step_ms             a step that holds decodes computes prompts for so long at most, by measured speed; 0: for any time
    enforce_eager           capture no CUDA graphs
    cudagraph_capture_sizes  numbers of decoding sequences for each of which a graph is captured; None: 1, 2, 4 and multiples of 8 up to
                            `max_num_seqs`
    deterministic           decide by no measured speed, and compute a token by its position alone, whatever else is in its step: the same
                            prompt gives the same answer, cold or resumed
    num_speculative_tokens  tokens that the checkpoint's own layer for it (`mtp.*`) drafts for each answer and step; 0: none
    coalesce                a request waits for what another is computing, where that is sooner
    priority_ageing         seconds of waiting that are worth one step of priority
    fair_salts              salts that wait at one priority take turns
    lmcache_lookup          ranks that LMCache is asked on before a load: "all", whose answers are leased; "rank0", to compare: the others
                            may lack what it has, and fail the load then
    lmcache_partial_chunk   of the part of a chunk that the device has: "private": it is loaded too, into pages of the request's own;
                            "drop": it is read with its chunk, and left out
    kv_events_endpoint      where changes of the cache are published, such as tcp://*:5557; None: nowhere
    kv_events_replay_endpoint  where who has missed some asks for them; None: nowhere
    kv_events_topic         what they are published under
    faults                  what is to go wrong, as `stepwell.testing.faultspec` reads it (the flag is --fault): for tests
    served_model_name       the name that API clients give; None: `model` as written
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    calculate_kv_scales: bool = False
    state_dtype: str = "float32"
    load_format: str = "auto"
    block_size: int = 16
    rung_grid: int = 64
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    device_memory: int | None = None
    gpu_memory_utilization: float = 0.9
    host_memory: int = 4 * 2**30
    disk_cache: DiskCache | None = None
    kv_offload: str = "native"
    lmcache_lookup: str = "all"
    lmcache_partial_chunk: str = "private"
    disk_write_budget: int | None = None
    disk_write_when: str = "idle"
    enable_prefix_caching: bool = True
    tensor_parallel_size: int = 1
    worker_timeout: float = 4.0
    disable_custom_all_reduce: bool = False
    state_checkpoint_interval_tokens: int = 8192
    decode_rung_tokens: int = 16
    min_load_tokens: int | None = None
    tenant_share: float = 1.0
    verify_host: float | None = None
    verify_resume: float = 0.0
    load_timeout: float = 30.0
    async_scheduling: str = "auto"
    max_step_ms: float = 200.0
    enforce_eager: bool = False
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    deterministic: bool = False
    num_speculative_tokens: int = 0
    coalesce: bool = True
    priority_ageing: float = 10.0
    fair_salts: bool = False
    kv_events_endpoint: str | None = None
    kv_events_replay_endpoint: str | None = None
    kv_events_topic: str = ""
    faults: tuple[str, ...] = ()
    seed: int = 0
    served_model_name: str | None = None

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_grids()
        if self.faults:
            from stepwell.testing.faultspec import parse_faults

            parse_faults(self.faults)

    @property
    def name(self) -> str:
        """The name under which the model is served."""
        return self.served_model_name or self.model

    @property
    def dummy_seed(self) -> int | None:
        """The seed of random weights; None where weights are read from files."""
        return self.seed if self.load_format == "dummy" else None

    def _check_choices(self) -> None:
        if not self.model:
            raise ConfigError("MODEL is empty: give the directory of a checkpoint")
        if self.device not in DEVICES:
            raise ConfigError(f"--device {self.device!r} is unknown: use one of {', '.join(DEVICES)}")
        if self.dtype not in DTYPES:
            raise ConfigError(f"--dtype {self.dtype!r} is unknown: use one of {', '.join(DTYPES)}")
        if self.kv_cache_dtype not in KV_DTYPES:
            raise ConfigError(f"--kv-cache-dtype {self.kv_cache_dtype!r} is unknown: use one of {', '.join(KV_DTYPES)}")
        if self.calculate_kv_scales and not self.kv_cache_dtype.startswith("fp8"):
            raise ConfigError("--calculate-kv-scales is for keys and values in FP8: give --kv-cache-dtype fp8, too")
        if self.state_dtype not in STATE_DTYPES:
            raise ConfigError(f"--state-dtype {self.state_dtype!r} is unknown: use one of {', '.join(STATE_DTYPES)}")
        if self.load_format not in LOAD_FORMATS:
            raise ConfigError(f"--load-format {self.load_format!r} is unknown: use one of {', '.join(LOAD_FORMATS)}")
        if self.disk_write_when not in DISK_WHEN:
            raise ConfigError(
                f"--disk-write-when {self.disk_write_when!r} is unknown: use one of {', '.join(DISK_WHEN)}"
            )
        if self.async_scheduling not in SWITCH:
            raise ConfigError(
                f"--async-scheduling {self.async_scheduling!r} is unknown: use one of {', '.join(SWITCH)}"
            )
        if self.kv_offload not in KV_OFFLOADS:
            raise ConfigError(f"--kv-offload {self.kv_offload!r} is unknown: use one of {', '.join(KV_OFFLOADS)}")
        if self.lmcache_lookup not in LMCACHE_LOOKUPS:
            raise ConfigError(
                f"--lmcache-lookup {self.lmcache_lookup!r} is unknown: use one of {', '.join(LMCACHE_LOOKUPS)}"
            )
        if self.lmcache_partial_chunk not in LMCACHE_PARTIAL_CHUNKS:
            known = ", ".join(LMCACHE_PARTIAL_CHUNKS)
            raise ConfigError(f"--lmcache-partial-chunk {self.lmcache_partial_chunk!r} is unknown: use one of {known}")
        if self.kv_offload != "native":
            self._check_external()
        if self.disk_cache is not None and not self.enable_prefix_caching:
            raise ConfigError("--disk-cache needs the prefix cache: leave out --no-enable-prefix-caching")
        if self.kv_events_endpoint is None and (self.kv_events_replay_endpoint is not None or self.kv_events_topic):
            raise ConfigError(
                "--kv-events-replay-endpoint and --kv-events-topic need --kv-events-endpoint: give it, too"
            )
        for flag, address in (("", self.kv_events_endpoint), ("-replay", self.kv_events_replay_endpoint)):
            if address is not None and not address.startswith(("tcp://", "ipc://")):
                raise ConfigError(
                    f"--kv-events{flag}-endpoint {address!r} is no address: give one such as tcp://*:5557"
                )

    def _check_external(self) -> None:
        if not self.enable_prefix_caching:
            raise ConfigError("--kv-offload lmcache needs the prefix cache: leave out --no-enable-prefix-caching")
        if self.calculate_kv_scales:
            raise ConfigError("--kv-offload lmcache keeps no scales of KV: leave out --calculate-kv-scales")

    def _check_numbers(self) -> None:
        for name in _AT_LEAST_ONE:
            _at_least(name, getattr(self, name), 1)
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)
        if self.device_memory is not None:
            _at_least("device_memory", self.device_memory, 1)
        if self.disk_write_budget is not None:
            _at_least("disk_write_budget", self.disk_write_budget, 1)
        if self.min_load_tokens is not None:
            _at_least("min_load_tokens", self.min_load_tokens, 0)
        if self.cudagraph_capture_sizes is not None:
            if not self.cudagraph_capture_sizes:
                raise ConfigError(
                    "--cudagraph-capture-sizes is empty: give numbers of sequences, or --enforce-eager for no graphs"
                )
            _at_least("cudagraph_capture_sizes", min(self.cudagraph_capture_sizes), 1)
        _at_least("host_memory", self.host_memory, 0)
        _at_least("num_speculative_tokens", self.num_speculative_tokens, 0)
        _at_least("seed", self.seed, 0)
        if not 0 < self.tenant_share <= 1:
            raise ConfigError(f"--tenant-share {self.tenant_share} must be above 0 and at most 1, such as 0.5")
        if self.verify_host is not None and not 0 <= self.verify_host <= 1:
            raise ConfigError(f"--verify-host {self.verify_host} must be between 0 and 1, such as 0.01")
        if not 0 <= self.verify_resume <= 1:
            raise ConfigError(f"--verify-resume {self.verify_resume} must be between 0 and 1, such as 0.01")
        if not 0 <= self.load_timeout < float("inf"):
            raise ConfigError(f"--load-timeout {self.load_timeout} must be a number of seconds, or 0 for never")
        if not (self.worker_timeout == 0 or 1 <= self.worker_timeout < float("inf")):
            raise ConfigError(
                f"--worker-timeout {self.worker_timeout} must be a number of seconds of at least 1, or 0 for any time"
            )
        if not 0 < self.priority_ageing < float("inf"):
            raise ConfigError(
                f"--priority-ageing {self.priority_ageing} must be a number of seconds above 0, such as 10"
            )
        if not 0 <= self.max_step_ms < float("inf"):
            raise ConfigError(f"--max-step-ms {self.max_step_ms} must be a number of milliseconds, or 0 for any time")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"--gpu-memory-utilization {self.gpu_memory_utilization} must be above 0 and at most 1, such as 0.9"
            )

    def _check_grids(self) -> None:
        _multiple("rung_grid", self.rung_grid, "block_size", self.block_size)
        if self.deterministic and self.rung_grid % 64:
            raise ConfigError(
                f"--deterministic needs a --rung-grid that is a multiple of 64, in which states are summed, not {self.rung_grid}"
            )
        if self.deterministic and self.state_dtype != "float32":
            raise ConfigError(
                f"--deterministic needs --state-dtype float32: a state would be rounded to {self.state_dtype} where a prompt "
                "is resumed, and not where it is computed in one go"
            )
        interval = self.state_checkpoint_interval_tokens
        if interval < 1:
            raise ConfigError(
                f"--state-checkpoint-interval-tokens {interval} would leave no rung on the way of a long prompt: give a multiple "
                f"of --rung-grid {self.rung_grid} (a large one for few), or --no-enable-prefix-caching for no cache at all"
            )
        _multiple("state_checkpoint_interval_tokens", interval, "rung_grid", self.rung_grid)
        _multiple("decode_rung_tokens", self.decode_rung_tokens, "block_size", self.block_size)
        drafts = self.num_speculative_tokens
        if drafts >= self.block_size:
            raise ConfigError(f"--num-speculative-tokens {drafts} must be below --block-size {self.block_size}")
        if drafts and self.deterministic:
            raise ConfigError(
                "--deterministic computes a token by its position alone, which drafts do not: leave out --num-speculative-tokens"
            )
        least = (self.max_num_seqs - 1) * (1 + drafts) + self.rung_grid
        if self.max_num_batched_tokens < least:
            each = f"{1 + drafts} tokens" if drafts else "a token"
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} must be at least {least}: {each} for each of "
                f"--max-num-seqs {self.max_num_seqs} and one --rung-grid of {self.rung_grid} prompt tokens"
            )


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a front end must know of a built engine.

    model          the served name
    max_model_len  tokens of prompt and answer together
    vocab_size     token ids are 0 … vocab_size − 1
    memory_plan    rows (name, value, note) to print: pages, images that fit, host slots …
    doubts         sentences about what will hardly work as it is meant
    ends           tokens that end an answer, by the files that name them
    phases         (what the start was doing, seconds), in order
    """

    model: str
    max_model_len: int
    vocab_size: int
    memory_plan: tuple[tuple[str, str, str], ...] = ()
    doubts: tuple[str, ...] = ()
    ends: Ends = field(default_factory=Ends)
    phases: tuple[tuple[str, float], ...] = ()


Report: TypeAlias = Callable[[EngineFacts | str], None]
"""`build_engine(config, report)` tells the name of each phase of the start, and facts exactly once, before it returns the loop."""


def engine_config(flags: Mapping[str, Any]) -> EngineConfig:
    """A config from flags by field name; sizes and `disk_cache` may be text such as `"8GiB"`. Raises ConfigError."""
    known = {f.name for f in fields(EngineConfig)}
    unknown = sorted(set(flags) - known)
    if unknown:
        raise ConfigError(f"unknown flag {flag(unknown[0])}: known are {', '.join(flag(n) for n in sorted(known))}")
    sizes: dict[str, Any] = {name: parse_size(flags[name]) for name in _SIZES if isinstance(flags.get(name), str)}
    if isinstance(flags.get("disk_cache"), str):
        sizes["disk_cache"] = DiskCache.parse(flags["disk_cache"])
    lists: dict[str, Any] = {"faults": tuple(flags["faults"] or ())} if "faults" in flags else {}
    if "cudagraph_capture_sizes" in flags:
        lists["cudagraph_capture_sizes"] = _capture_sizes(flags["cudagraph_capture_sizes"] or ()) or None
    return EngineConfig(**{**flags, **sizes, **lists})


def _capture_sizes(words: Iterable[str | int]) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words)
    except ValueError as error:
        raise ConfigError(f"--cudagraph-capture-sizes takes whole numbers: {error}") from error


def flag(name: str) -> str:
    """The flag of a field: `"block_size"` → `"--block-size"`."""
    return "--fault" if name == "faults" else "--" + name.replace("_", "-")


def _at_least(name: str, value: int, floor: int) -> None:
    if value < floor:
        raise ConfigError(f"{flag(name)} must be at least {floor}, not {value}")


def _multiple(name: str, value: int, of: str, unit: int) -> None:
    if value % unit:
        raise ConfigError(f"{flag(name)} {value} must be a multiple of {flag(of)} {unit}")
