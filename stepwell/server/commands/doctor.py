"""`stepwell doctor`: what would go wrong with these flags on this machine, and what to do about it. Starts no engine."""

from __future__ import annotations

import asyncio
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.geometry import Geometry
from stepwell.base.units import format_size
from stepwell.engine.disk_tier import layout_of
from stepwell.engine.doubts import doubts, longest_context
from stepwell.server.commands.options import ServeOptions
from stepwell.server.commands.preflight import expect_files, listen
from stepwell.server.prompt.templates import expect_end
from stepwell.server.read.defaults import ends_of, read_defaults, shown
from stepwell.store.disk.store import size_of_segments

if TYPE_CHECKING:
    from stepwell.model.config import HybridConfig
    from stepwell.store.device import Precision

_WEIGHTS = "*.safetensors"
_LEAST_FILES = 1024
_LONGEST_TEMPORARY = 70
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` is empty where all is well."""

    level: Literal["ok", "warning", "error"]
    what: str
    found: str
    advice: str = ""


def examine(options: ServeOptions) -> list[Finding]:
    """Everything, in the order in which it would go wrong. Raises nothing: what fails is a finding."""
    findings: list[Finding] = []
    checks: tuple[tuple[str, Callable[[ServeOptions], Iterator[Finding]]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("device", _device),
        ("checkpoint", _checkpoint),
        ("memory", _memory),
        ("disk", _disk),
        ("traces", _traces),
        ("port", _port),
        ("system", _system),
    )
    for what, check in checks:
        try:
            findings += check(options)
        except (StepwellError, OSError, ImportError, ValueError) as error:
            findings.append(Finding("error", what, f"{type(error).__name__}", str(error)))
    return findings


def show(findings: list[Finding], console: Console) -> int:
    """Print them; the exit status: 1 where something would keep the server from starting."""
    table = Table("", "", "", "what to do", box=None, header_style="bold")
    for finding in findings:
        colour = _COLOURS[finding.level]
        table.add_row(
            f"[{colour}]{finding.level}[/]", escape(finding.what), escape(finding.found), escape(finding.advice)
        )
    console.print(table)
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    console.print(f"{errors} errors, {warnings} warnings", highlight=False)
    return 1 if errors else 0


def _python(options: ServeOptions) -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _packages(options: ServeOptions) -> Iterator[Finding]:
    """Versions that the package itself asks for."""
    for line in metadata.requires("stepwell") or []:
        wanted = Requirement(line)
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": extra}) for extra in ("", "engine")):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield Finding("error", wanted.name, "not installed", "install Stepwell with its extra [engine]")
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            yield Finding("error", wanted.name, version, f"install {wanted.name}{wanted.specifier}")
        elif wanted.name in ("torch", "transformers"):
            yield Finding("ok", wanted.name, version)


def _device(options: ServeOptions) -> Iterator[Finding]:
    import torch

    wanted = options.config.device
    if not torch.cuda.is_available():
        if wanted == "cuda":
            build = "a CPU build" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
            advice = "use --device cpu, or see that the driver is there and the process may use it"
            yield Finding(
                "error", "device", f"no CUDA device is visible to torch {torch.__version__} ({build})", advice
            )
        else:
            yield Finding("ok", "device", f"cpu, {torch.get_num_threads()} threads")
        return
    if wanted == "cpu":
        yield Finding("warning", "device", "cpu, though there is a CUDA device", "leave out --device cpu to use it")
        return
    free, total = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    if free < 0.5 * total:
        advice = "another process holds the rest: end it, or lower --gpu-memory-utilization"
        yield Finding("warning", "device", f"{name}, {format_size(free)} of {format_size(total)} free", advice)
    else:
        yield Finding("ok", "device", f"{name}, {format_size(free)} of {format_size(total)} free")


def _checkpoint(options: ServeOptions) -> Iterator[Finding]:
    from stepwell.engine.text.tokenizer import Tokenizer
    from stepwell.model.checkpoint import Checkpoint

    folder = Path(options.config.model)
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory: give one with config.json, *.safetensors and tokenizer.json")
    expect_files(options.config, own_template=options.template.text is None)
    model = _model(options)
    kinds = f"{model.shape.attention_layers} attention and {model.shape.linear_layers} recurrent layers"
    yield Finding("ok", "config.json", f"{kinds}, {model.max_positions:,} positions")
    if options.config.dummy_seed is not None:
        yield Finding("ok", "weights", f"random, {format_size(_weight_bytes(options))}")
    else:
        with Checkpoint(folder):
            found = f"{len(sorted(folder.glob(_WEIGHTS)))} files, {format_size(_weight_bytes(options))}"
            yield Finding("ok", "weights", found)
    tokenizer = Tokenizer.load(str(folder), options.template.text)
    if not tokenizer.template:
        advice = "chats will be refused: add chat_template to tokenizer_config.json, or use /v1/completions alone"
        yield Finding("warning", "chat template", "none", advice)
    else:
        asyncio.run(expect_end(tokenizer.chat))
        yield Finding("ok", "chat template", f"{len(tokenizer.template):,} characters")
    ends = ends_of(model.ends, tokenizer)
    yield Finding("ok", "ends", ", ".join(shown(token, tokenizer) for token in ends.tokens) or "none")
    for doubt in ends.doubts():
        yield Finding("warning", "ends", "the files of the model disagree", doubt)
    defaults = read_defaults(options.config.model, options.generation_config, options.generation_override)
    yield Finding("ok", "sampling", f"{defaults}" + (f" ({defaults.source})" if defaults.source else ""))


def _weight_bytes(options: ServeOptions) -> int:
    """Bytes that the weights take in memory: those of their files, where they stay as they are stored; FP8 is unpacked on a CPU."""
    config, model = options.config, _model(options)
    if config.dummy_seed is None and not (model.fp8 and _on_cpu(options)):
        return sum(file.stat().st_size for file in Path(config.model).glob(_WEIGHTS))
    from stepwell.model.fp8 import weight_bytes

    return weight_bytes(model, _precision(options).model.itemsize, kept=not _on_cpu(options))


def _model(options: ServeOptions) -> HybridConfig:
    from stepwell.model.config import HybridConfig

    return HybridConfig.from_file(Path(options.config.model))


def _memory(options: ServeOptions) -> Iterator[Finding]:
    """What the budgets hold, where they are given; how much is free."""
    from stepwell.store.host import available_memory

    config, free = options.config, available_memory()
    wanted = config.host_memory + (_weight_bytes(options) if _on_cpu(options) else 0)
    wanted += (config.device_memory or 0) if _on_cpu(options) else 0
    found = f"{format_size(free)} free, {format_size(wanted)} wanted"
    if wanted > free:
        yield Finding("error", "memory", found, "lower --host-memory (and --device-memory on a CPU)")
    else:
        yield Finding("ok", "memory", found)
    if config.device_memory is None:
        return
    sizes = _geometry(options)
    pages, slots = config.device_memory // sizes.page_bytes, config.host_memory // sizes.page_bytes
    room = pages * sizes.block
    yield Finding("ok", "device pages", f"{pages:,} of {format_size(sizes.page_bytes)}: {room:,} tokens of KV")
    for doubt in doubts(
        config, sizes, pages, slots, longest_context(config, sizes, pages, _model(options).max_positions)
    ):
        yield Finding("warning", "caching", "will hardly do what it is there for", doubt)


def _on_cpu(options: ServeOptions) -> bool:
    import torch

    return options.config.device == "cpu" or not torch.cuda.is_available()


def _geometry(options: ServeOptions) -> Geometry:
    config, shape = options.config, _model(options).shape
    if config.num_speculative_tokens and _on_cpu(options):
        shape = shape.drafting()
    return shape.geometry(config.block_size, config.rung_grid, _precision(options).widths)


def _precision(options: ServeOptions) -> Precision:
    from stepwell.model.loading import DTYPES
    from stepwell.store.device import Precision

    dtype = DTYPES[_model(options).dtype if options.config.dtype == "auto" else options.config.dtype]
    config = options.config
    return Precision.of(dtype, config.kv_cache_dtype, config.state_dtype)


def _disk(options: ServeOptions) -> Iterator[Finding]:
    wanted = options.config.disk_cache
    if wanted is None:
        return
    folder = Path(wanted.path)
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} is no directory: give --disk-cache another folder")
    with tempfile.NamedTemporaryFile(dir=there):  # raises OSError where nothing may be written
        pass
    free = shutil.disk_usage(there).free + sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    found = f"{format_size(free)} for it in {there}, {format_size(wanted.bytes)} wanted"
    if free < wanted.bytes:
        yield Finding("warning", "disk", found, "free some, or ask for less with --disk-cache")
    else:
        yield Finding("ok", "disk", found)
    if (Path(options.config.model) / "config.json").is_file():
        size_of_segments(wanted.bytes, layout_of(_geometry(options), {}))  # raises ConfigError where records do not fit


def _traces(options: ServeOptions) -> Iterator[Finding]:
    if options.traces is None:
        return
    try:
        for name in ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"):
            metadata.version(name)
    except metadata.PackageNotFoundError as error:
        advice = "install Stepwell with its extra [otel], or leave out --otlp-endpoint"
        yield Finding("error" if options.traces.asked else "warning", "traces", f"no {error.name}", advice)
    else:
        yield Finding("ok", "traces", f"to {options.traces.url}")


def _port(options: ServeOptions) -> Iterator[Finding]:
    where = f"{options.host}:{options.port}"
    try:
        listen(options.host, options.port).close()
    except ConfigError as error:
        yield Finding("error", "port", f"{where}: {error.__cause__}", "choose another --host or --port")
        return
    yield Finding("ok", "port", f"{where} is free")
    if options.host not in ("127.0.0.1", "localhost", "::1") and not options.keys.required:
        advice = "anyone who reaches this address may use the model: give --api-key, or listen on 127.0.0.1"
        yield Finding("warning", "keys", "none", advice)


def _system(options: ServeOptions) -> Iterator[Finding]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files < _LEAST_FILES:
        advice = "each open call takes one: raise it with ulimit -n, or LimitNOFILE= in a systemd unit"
        yield Finding("warning", "open files", f"at most {files}", advice)
    else:
        yield Finding("ok", "open files", f"at most {files:,}")
    place = tempfile.gettempdir()
    if len(place) > _LONGEST_TEMPORARY:
        yield Finding("error", "temporary directory", place, "too long for a socket: set TMPDIR to a shorter one")
    if sys.platform != "linux":
        yield Finding("warning", "system", sys.platform, "tested on Linux only")
