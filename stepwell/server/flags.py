"""The flags of `stepwell serve`: names that vLLM users already type, where they exist. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

_MODEL = "Model"
_CACHE = "Cache"
_SERVER = "Server"


def _option(text: str, panel: str) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, show_default=True)


Model = Annotated[str, typer.Argument(help="Directory of a Hugging Face checkpoint.")]
ServedModelName = Annotated[str | None, _option("Name that clients give. Default: MODEL as written.", _MODEL)]
Device = Annotated[str, _option("cpu, cuda, or auto: cuda where there is one.", _MODEL)]
Dtype = Annotated[str, _option("float32, bfloat16, float16, or auto: as in config.json.", _MODEL)]
MaxModelLen = Annotated[int | None, _option("Tokens of prompt and answer together. Default: from config.json.", _MODEL)]
TensorParallelSize = Annotated[int, _option("Ranks that share one model; 1 for now.", _MODEL)]
Seed = Annotated[int, _option("Seed of the engine itself; requests bring their own.", _MODEL)]
MaxNumSeqs = Annotated[int, _option("Sequences that run at once.", _MODEL)]
MaxNumBatchedTokens = Annotated[int, _option("Most tokens in one forward pass.", _MODEL)]

BlockSize = Annotated[int, _option("Tokens in a block, the unit of prefix matching.", _CACHE)]
RungGrid = Annotated[int, _option("Prompt rungs stand on multiples of this many tokens.", _CACHE)]
DeviceMemory = Annotated[
    str | None, _option("Size of the device arena, such as 8GiB. Overrides --gpu-memory-utilization.", _CACHE)
]
GpuMemoryUtilization = Annotated[float, _option("Share of GPU memory for weights, work and arena.", _CACHE)]
HostMemory = Annotated[str, _option("Size of the host tier, such as 32GiB; 0 switches it off.", _CACHE)]
EnablePrefixCaching = Annotated[bool, _option("Reuse what earlier prompts have computed.", _CACHE)]
StateCheckpointIntervalTokens = Annotated[int, _option("A rung at least every so many prompt tokens.", _CACHE)]
DecodeRungTokens = Annotated[int, _option("Refresh the rung of a running answer every so many tokens.", _CACHE)]
MinLoadTokens = Annotated[
    int | None,
    _option("Load from a lower tier only what saves this many tokens. Default: by expected time.", _CACHE),
]

Host = Annotated[str, _option("Address to listen on; 0.0.0.0 for all.", _SERVER)]
Port = Annotated[int, _option("Port to listen on; 0 for any free one.", _SERVER)]
MaxQueue = Annotated[int, _option("Sequences that may wait; more are answered with 429.", _SERVER)]
MaxBodySize = Annotated[str, _option("Largest request body, such as 8MB.", _SERVER)]
LogLevel = Annotated[str, _option("debug, info, warning or error.", _SERVER)]
