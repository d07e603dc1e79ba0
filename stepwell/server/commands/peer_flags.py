"""Flags of vLLM and SGLang, one row each: what becomes of it where someone types the launch line that they know.

A flag that has a meaning here is written as ours. One that could change no answer is accepted, and said to change nothing. One that
would change answers, or promises what this server has not got, is refused by name: a silent difference is the worst of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

MANY = -1
"""As a number of values: all up to the next flag."""


@dataclass(frozen=True, slots=True)
class As:
    """The same as our flag `name` ("": the MODEL itself).

    values  its words for our values; other words are passed on as they are
    unit    what is added to a bare number, such as "GiB"
    """

    name: str
    values: tuple[tuple[str, str], ...] = ()
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Switch:
    """A bare switch there, a choice here: our flag `name` with `value`, unless one of our own `words` follows."""

    name: str
    value: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """A JSON object there, whose `field` is our flag `name`, where its field `kind` is one of `kinds`; else it changes nothing.

    why   completes the sentence "… changes nothing: "
    """

    name: str
    field: str
    kind: str
    kinds: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A JSON object there, each of whose fields is a flag of ours. It changes nothing unless its field `switch` is true, or where one is
    `off`.

    flags     (field, our flag, value of a field that is left out; None: the flag is left out)
    needless  its fields that change nothing here
    """

    switch: str
    off: tuple[str, str]
    flags: tuple[tuple[str, str, str | None], ...]
    needless: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Needless:
    """Accepted and dropped. `why` completes the sentence "… changes nothing: "."""

    why: str


@dataclass(frozen=True, slots=True)
class Only:
    """Accepted with one of `values`, which is how this server works in any case; refused with another."""

    values: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """`why` says what to do instead."""

    why: str


Fate: TypeAlias = As | Switch | Within | Unpacked | Needless | Only | Refused


@dataclass(frozen=True, slots=True)
class PeerFlag:
    """One flag, by all of its names, with the number of values that it takes."""

    names: tuple[str, ...]
    takes: int
    fate: Fate


def _row(names: str, takes: int, fate: Fate) -> PeerFlag:
    return PeerFlag(tuple(names.split()), takes, fate)


_ALWAYS = Needless("it is always on")
_EVENTS = Unpacked(
    "enable_kv_cache_events",
    ("publisher", "null"),
    (
        ("endpoint", "--kv-events-endpoint", "tcp://*:5557"),
        ("replay_endpoint", "--kv-events-replay-endpoint", None),
        ("topic", "--kv-events-topic", None),
    ),
    ("publisher", "buffer_steps", "hwm", "max_queue_size"),
)
_KERNELS = Needless("the engine chooses its kernels and shapes itself")
_LOADING = Needless("weights are read from safetensors files as fast as the disk gives them")
_LOGS = Needless("see --log-level and --log-format")
_TEXT = Needless("this engine reads and writes text alone")
_ONLY_MTP = "drafts change the speed of answers and never their tokens; only a checkpoint's own are used (--num-speculative-tokens)"
_DRAFTS = Needless(_ONLY_MTP)
_MTP = ("mtp", "qwen3_next_mtp", "qwen3_5_mtp", "qwen3_5_moe_mtp")
_QUEUE = Needless("calls are served by priority and in the order in which they came")
_GRAMMARS = Needless("grammars are read by llguidance, always")
_RANKS = Needless("how ranks talk to each other is the engine's own choice")
_CODE = Refused("no code but the server's own is run: leave it out")
_ADAPTERS = Refused("adapters are not supported: merge them into the checkpoint")
_MODEL = Refused("the model is what its config.json says: change it there")
_TOKENIZER = Refused("tokenizer and model come from one directory: put the files beside the weights")
_MACHINES = Refused("one server runs on one machine: leave it out")
_TLS = Refused("TLS and paths are a reverse proxy's work: leave it out")
_EXTERNAL = Refused("the cache's tiers are --host-memory and --disk-cache; --kv-offload lmcache has LMCache below them")
_SAME = "it is how this server works"

FLAGS: tuple[PeerFlag, ...] = (
    # What is served.
    _row("--model --model-path", 1, As("")),
    _row("--context-length", 1, As("--max-model-len")),
    _row("--tp --tp-size -tp", 1, As("--tensor-parallel-size")),
    _row("--random-seed", 1, As("--seed")),
    _row("--sampling-defaults", 1, As("--generation-config", (("model", "auto"), ("openai", "none")))),
    _row("--preferred-sampling-params", 1, As("--override-generation-config")),
    _row("--trust-remote-code", 0, Needless("code from a checkpoint is never run, and none is needed")),
    _row("--code-revision", 1, Needless("code from a checkpoint is never run, and none is needed")),
    _row("--tokenizer-revision", 1, _TOKENIZER),
    _row("--hf-token", 1, Refused("every user of the machine can read a command line: set HF_TOKEN instead")),
    _row("--tokenizer --tokenizer-path --hf-config-path", 1, _TOKENIZER),
    _row("--tokenizer-mode", 1, Only(("auto", "fast", "hf"), _SAME)),
    _row("--skip-tokenizer-init", 0, _TOKENIZER),
    _row("--quantization -q", 1, _MODEL),
    _row("--quantization-config", 1, _MODEL),
    _row("--disable-sliding-window", 0, _MODEL),
    _row("--mamba-ssm-cache-dtype --mamba-ssm-dtype", 1, As("--state-dtype", (("auto", "float32"),))),
    _row("--mamba-cache-dtype", 1, Only(("auto",), _SAME)),
    _row("--hf-overrides --json-model-override-args --rope-scaling --rope-theta", 1, _MODEL),
    _row("--enable-lora", 0, _ADAPTERS),
    _row("--lora-modules --lora-paths", MANY, _ADAPTERS),
    _row("--max-loras --max-lora-rank --max-cpu-loras --lora-dtype", 1, _ADAPTERS),
    _row("--lora-target-modules", MANY, _ADAPTERS),
    _row("--is-embedding", 0, _MODEL),
    _row("--task --runner", 1, Only(("auto", "generate"), _SAME)),
    _row("--convert", 1, Only(("auto", "none"), _SAME)),
    # Memory and the batch.
    _row("--mem-fraction-static", 1, As("--gpu-memory-utilization")),
    _row("--kv-cache-memory-bytes --kv-cache-memory", 1, As("--device-memory")),
    _row("--kv-offloading-size --hicache-size", 1, As("--host-memory", unit="GiB")),
    _row("--max-running-requests", 1, As("--max-num-seqs")),
    _row("--chunked-prefill-size", 1, As("--max-num-batched-tokens")),
    _row("--max-queued-requests", 1, As("--max-queue")),
    _row("--max-num-queued-reqs", 1, As("--max-queue")),
    _row("--disable-radix-cache", 0, As("--no-enable-prefix-caching")),
    _row("--enable-hierarchical-cache", 0, Needless("there is a host tier of --host-memory in any case")),
    _row("--kv-offloading-backend --hicache-ratio --hicache-write-policy --hicache-io-backend", 1, _EXTERNAL),
    _row(
        "--swap-space --cpu-offload-gb",
        1,
        Needless("preempted sequences keep their state; --host-memory sizes the tier"),
    ),
    _row("--num-gpu-blocks-override --max-total-tokens", 1, Refused("say --device-memory instead, in bytes")),
    _row("--kv-transfer-config", 1, _EXTERNAL),
    _row("--kv-events-config", 1, _EVENTS),
    _row(
        "--prefix-caching-hash-algo --page-size --mamba-block-size", 1, Needless("prompts are compared token by token")
    ),
    _row(
        "--mamba-cache-mode --mamba-scheduler-strategy --mamba-full-memory-ratio",
        1,
        Needless("one pool holds KV and states"),
    ),
    _row("--enable-mamba-extra-buffer", 0, Needless("one pool holds KV and states")),
    _row("--disable-hybrid-kv-cache-manager", 0, Needless("one pool holds KV and states")),
    _row("--prefix-match-unit --prefix-cache-retention-interval", 1, Needless("prompts are compared token by token")),
    _row(
        "--enable-chunked-prefill --no-enable-chunked-prefill", 0, Needless("long prompts are always computed in parts")
    ),
    _row(
        "--max-prefill-tokens --max-num-partial-prefills --max-long-partial-prefills",
        1,
        Needless("see --max-num-batched-tokens"),
    ),
    _row("--long-prefill-token-threshold", 1, Needless("see --max-num-batched-tokens")),
    _row("--schedule-policy --scheduling-policy --schedule-conservativeness --stream-interval", 1, _QUEUE),
    _row("--async-scheduling", 0, Switch("--async-scheduling", "on", ("auto", "on", "off"))),
    _row("--no-async-scheduling", 0, Switch("--async-scheduling", "off", ())),
    _row("--disable-overlap-schedule", 0, Switch("--async-scheduling", "off", ())),
    _row("--enable-mixed-chunk", 0, _QUEUE),
    # How it is computed.
    _row("--disable-cuda-graph", 0, As("--enforce-eager")),
    _row("--enable-torch-compile --enable-flashinfer-autotune", 0, _KERNELS),
    _row("--disable-cascade-attn --enable-dbo", 0, _KERNELS),
    _row(
        "--gdn-prefill-backend --kda-prefill-backend --kda-decode-backend --mamba-backend --linear-backend", 1, _KERNELS
    ),
    _row("--attention-config --kernel-config --performance-mode --optimization-level --model-impl", 1, _KERNELS),
    _row("--disable-piecewise-cuda-graph --disable-shared-experts-fusion --disable-cuda-graph-padding", 0, _KERNELS),
    _row(
        "--attention-backend --decode-attention-backend --prefill-attention-backend --mm-attention-backend", 1, _KERNELS
    ),
    _row(
        "--linear-attn-backend --linear-attn-decode-backend --linear-attn-prefill-backend --sampling-backend",
        1,
        _KERNELS,
    ),
    _row("--moe-backend --moe-runner-backend --fp8-gemm-backend --fp4-gemm-backend --block-size-kernel", 1, _KERNELS),
    _row(
        "--compilation-config -cc -O --cuda-graph-max-bs --max-cudagraph-capture-size --max-seq-len-to-capture",
        1,
        _KERNELS,
    ),
    _row("--cuda-graph-bs --cudagraph-capture-sizes", MANY, As("--cudagraph-capture-sizes")),
    _row("-O0 -O1 -O2 -O3", 0, _KERNELS),
    _row(
        "--speculative-config -sc",
        1,
        Within("--num-speculative-tokens", "num_speculative_tokens", "method", _MTP, _ONLY_MTP),
    ),
    _row("--speculative-algo --speculative-algorithm --speculative-num-steps", 1, _DRAFTS),
    _row("--speculative-eagle-topk --speculative-num-draft-tokens --speculative-draft-model-path", 1, _DRAFTS),
    _row("--speculative-moe-runner-backend --speculative-attention-mode", 1, _DRAFTS),
    _row("--spec-tokens", 1, As("--num-speculative-tokens")),
    _row("--spec-method --spec-model", 1, _DRAFTS),
    _row("--enable-expert-parallel --enable-ep-moe --enable-eplb --enable-dp-attention", 0, _RANKS),
    _row("--ep --ep-size --expert-parallel-size --moe-dp-size --moe-a2a-backend --all2all-backend", 1, _RANKS),
    _row("--distributed-executor-backend", 1, _RANKS),
    _row("--enable-p2p-check --enable-flashinfer-allreduce-fusion", 0, _RANKS),
    _row("--distributed-timeout-seconds --cpu-distributed-timeout-seconds", 1, _RANKS),
    _row("--numa-bind", 0, _RANKS),
    _row(
        "-dp --dp --dp-size --data-parallel-size",
        1,
        Needless("one server is one replica: start more behind a balancer"),
    ),
    _row("-pp --pp-size --pipeline-parallel-size -dcp --decode-context-parallel-size", 1, Only(("1",), _SAME)),
    _row("--nnodes", 1, Only(("1",), _SAME)),
    _row("--node-rank --master-addr --master-port --dist-init-addr --data-parallel-address", 1, _MACHINES),
    _row("--headless", 0, _MACHINES),
    _row("--data-parallel-rank --data-parallel-start-rank --data-parallel-rpc-port", 1, _MACHINES),
    _row(
        "--enable-sleep-mode",
        0,
        Refused("the engine does not sleep: stop the server, and give --disk-cache to keep its cache"),
    ),
    _row("--model-loader-extra-config --max-parallel-loading-workers --weight-loader-disable-mmap", 1, _LOADING),
    _row("--watchdog-timeout --dist-timeout", 1, _LOADING),
    _row(
        "--safetensors-load-strategy --safetensors-prefetch-num-threads --safetensors-prefetch-block-size", 1, _LOADING
    ),
    # Images and the like.
    _row("--language-model-only --enable-mm-embeds --skip-mm-profiling --language-only", 0, _TEXT),
    _row("--limit-mm-per-prompt --mm-encoder-tp-mode --mm-processor-cache-type --mm-processor-cache-gb", 1, _TEXT),
    _row("--mm-processor-kwargs --media-io-kwargs --allowed-local-media-path --mm-encoder-attn-backend", 1, _TEXT),
    _row("--enable-multimodal", 0, Refused("this engine reads and writes text alone: leave it out")),
    _row("--interleave-mm-strings", 0, _TEXT),
    _row("--video-pruning-rate --mm-encoder-attn-dtype --mm-shm-cache-max-object-size-mb", 1, _TEXT),
    _row("--enable-prompt-embeds", 0, Refused("prompts are texts or tokens: leave it out")),
    # What answers look like.
    _row("--served-model-name", MANY, As("--served-model-name")),
    _row("--api-key", MANY, As("--api-key")),
    _row("--allowed-origins", MANY, As("--allowed-origins")),
    _row("--enable-auto-tool-choice --enable-reasoning", 0, _ALWAYS),
    _row("--enable-prompt-tokens-details --enable-cache-report --enable-request-id-headers", 0, _ALWAYS),
    _row("--enable-metrics --enable-server-load-tracking", 0, _ALWAYS),
    _row(
        "--tool-call-parser",
        1,
        Only(
            ("auto", "hermes", "qwen", "qwen25", "qwen3_coder", "qwen3_xml", "qwen3"),
            "calls are read in the form that the chat template asks for",
        ),
    ),
    _row(
        "--reasoning-parser",
        1,
        Only(
            ("auto", "qwen3", "qwen3-thinking", "deepseek_r1", "deepseek-r1"),
            "thoughts are read where the chat template marks them with <think>",
        ),
    ),
    _row("--tool-parser-plugin --reasoning-parser-plugin --logits-processors --middleware", MANY, _CODE),
    _row("--worker-cls --worker-extension-cls --scheduler-cls --io-processor-plugin", 1, _CODE),
    _row("--tool-server", 1, _CODE),
    _row("--enable-custom-logit-processor", 0, _CODE),
    _row("--chat-template-content-format", 1, Only(("auto", "string"), "templates get content as one text")),
    _row("--response-role", 1, Only(("assistant",), _SAME)),
    _row("--logprobs-mode", 1, Only(("raw_logprobs",), "log-probabilities are the model's own")),
    _row("--max-logprobs", 1, Only(tuple(str(i) for i in range(21)), "a call may ask for 20")),
    _row("--return-tokens-as-token-ids", 0, Refused("log-probabilities name tokens by their text: leave it out")),
    _row(
        "--exclude-tools-when-tool-choice-none", 0, Refused("it would make prompts differ by tool_choice: leave it out")
    ),
    _row(
        "--enable-force-include-usage", 0, Refused("a stream has usage where stream_options ask for it: leave it out")
    ),
    _row("--guided-decoding-backend --grammar-backend --structured-outputs-config", 1, _GRAMMARS),
    # The server around it.
    _row("--disable-log-requests --disable-log-stats --enable-log-requests --log-requests", 0, _LOGS),
    _row("--disable-uvicorn-access-log --show-time-cost --enable-log-deltas --disable-fastapi-docs", 0, _LOGS),
    _row("--kv-cache-metrics --cudagraph-metrics --enable-mfu-metrics --enable-logging-iteration-details", 0, _LOGS),
    _row("--log-config-file --collect-detailed-traces --show-hidden-metrics-for-version", 1, _LOGS),
    _row("--uvicorn-log-level --log-level-http --log-requests-level --decode-log-interval --max-log-len", 1, _LOGS),
    _row("--skip-server-warmup", 0, Needless("what has to be warm is warm before the port is open")),
    _row("--api-server-count --tokenizer-worker-num", 1, Needless("one process serves HTTP, another runs the engine")),
    _row("--otlp-traces-endpoint", 1, As("--otlp-endpoint")),
    _row("--ssl-keyfile --ssl-certfile --ssl-ca-certs --root-path --uds", 1, _TLS),
)
