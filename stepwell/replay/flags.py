"""The flags of `stepwell replay` and `stepwell plan`. Imports no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stepwell.replay.fleet.routing import ROUTINGS
from stepwell.replay.policies import policies


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


_TRACE = "Trace"
_MACHINE = "Machine that is simulated"
_FLEET = "Several machines"
_LIVE = "Live server"
_REPORT = "Report"
_SWEEP = "Sweep"

TraceFile = Annotated[
    str,
    typer.Argument(
        help="Trace file or folder, plain or .gz; or `synthetic`, to make one up.", show_default=False, metavar="TRACE"
    ),
]
LaneCount = Annotated[int, _option("Conversations going on at any time.", _TRACE)]
Warmup = Annotated[float, _option("Seconds before figures count.", _TRACE, min=0)]
Duration = Annotated[float, _option("Seconds that count.", _TRACE, min=0)]
Seed = Annotated[int, _option("Same seed, same requests; simulated: same figures.", _TRACE, min=0)]
Start = Annotated[
    tuple[float, float], _option("Each lane begins between these shares of its first conversation's span.", _TRACE)
]
Once = Annotated[bool, _option("Play every conversation once instead of round and round.", _TRACE)]
ThinkCap = Annotated[float, _option("Longest think time, in seconds; longer ones are cut.", _TRACE)]
IdleGapCap = Annotated[
    float | None,
    _option("Longest time, in seconds, in which nothing is under way. Default: as recorded.", _TRACE, min=0),
]
MaxPrompt = Annotated[int, _option("Leave out turns with prompts of more tokens.", _TRACE)]
Conversations = Annotated[int, _option("For `synthetic`: how many to make up.", _TRACE, min=1)]
Scale = Annotated[float, _option("For `synthetic`: multiplies every token count.", _TRACE)]
Turns = Annotated[
    float, _option("For `synthetic`: requests of a conversation, the median of a wide spread.", _TRACE, min=1)
]
Agents = Annotated[float, _option("For `synthetic`: chance of a turn to start sub-agents.", _TRACE)]
FanOut = Annotated[int, _option("For `synthetic`: sub-agents that start at once; they share a head.", _TRACE)]

ProfileName = Annotated[
    str, _option("Speeds of machine and model: a name, or a file of `stepwell bench calibrate`.", _MACHINE)
]
DeviceTokens = Annotated[
    str, _option("Device memory for KV and rungs, as tokens of KV (8e6), or as memory of one rank (60GiB).", _MACHINE)
]
HostTokens = Annotated[str, _option("Host memory for the cache, in the same way. 0: no host tier.", _MACHINE)]
DiskTokens = Annotated[str, _option("Disk for the cache, in the same way. 0: no disk tier.", _MACHINE)]
RungTokens = Annotated[
    int | None,
    _option(
        "Memory of one rung (checkpoint of the recurrent state), as tokens of KV. Default: the profile's.",
        _MACHINE,
        min=1,
    ),
]
BlockSize = Annotated[int, _option("Tokens in one page.", _MACHINE)]
RungGrid = Annotated[int, _option("Rungs of prompts stand on multiples of so many tokens.", _MACHINE)]
Interval = Annotated[int, _option("Tokens between insurance rungs.", _MACHINE)]
DecodeRungTokens = Annotated[
    int | None, _option("Refresh the rung of a running answer every so many tokens. Default: 16, or a block.", _MACHINE)
]
Policies = Annotated[
    list[str],
    _option(
        "What goes first where memory is short, or whose engine is modelled. Give it several times to compare.\n\n"
        + "\n\n".join(f"{name}: {said}." for name, said in policies().items()),
        _MACHINE,
        "--policy",
    ),
]
PeerFailureRate = Annotated[
    float, _option("Share of the legs of atom's and vllm's loads that fail; drawn by --seed.", _MACHINE, min=0, max=1)
]
MaxNumSeqs = Annotated[int, _option("Requests that run at the same time.", _MACHINE, min=1)]
MaxNumBatchedTokens = Annotated[int, _option("Tokens computed in one step, at most.", _MACHINE, min=1)]
Coalesce = Annotated[bool, _option("Requests wait for what others are computing, where that is sooner.", _MACHINE)]

Replicas = Annotated[
    int, _option("Machines of these sizes, behind one router; the memory above is each one's.", _FLEET, min=1)
]
Routings = Annotated[
    list[str],
    _option(
        "How requests are shared out among --replicas (2 or more). Give it several times to compare.\n\n"
        + "\n\n".join(f"{name}: {said}." for name, (said, _) in ROUTINGS.items()),
        _FLEET,
        "--routing",
    ),
]

Live = Annotated[
    str | None,
    _option("Drive the OpenAI-compatible server at this URL instead of simulating one.", _LIVE, metavar="URL"),
]
Model = Annotated[str | None, _option("Model to ask for. Default: the first that the server names.", _LIVE)]
ApiKey = Annotated[str, _option("Key to send.", _LIVE)]
TimeScale = Annotated[float, _option("Multiplies think times and recorded times; warm-up and duration stay.", _LIVE)]
Vocab = Annotated[int, _option("Prompts are made of token ids below this.", _LIVE, min=2)]
IgnoreEos = Annotated[bool, _option("Ask for answers of the recorded length.", _LIVE)]
Timeout = Annotated[float, _option("Seconds after which a request has failed.", _LIVE, min=0.1)]

BOUNDS = ("infinite", "future")
Bound = Annotated[
    str,
    _option(
        "What stands beside the results. infinite: what a cache without limits would reuse. future: also the least excess"
        " of any cache of this size that knows all requests beforehand.",
        _REPORT,
    ),
]
JsonLine = Annotated[bool, _option("End with one line of JSON: the figures.", _REPORT, "--json")]
JsonFile = Annotated[Path | None, _option("Write the whole report as JSON.", _REPORT, metavar="FILE")]
HtmlFile = Annotated[Path | None, _option("Write the report as one page with plots.", _REPORT, metavar="FILE")]
Convert = Annotated[Path | None, _option("Write the trace to this file (or folder) and stop.", _REPORT, metavar="OUT")]
ConvertTo = Annotated[str, _option("Form of --convert: own, source (a folder), mooncake.", _REPORT)]

DeviceSizes = Annotated[
    list[str], _option("Device sizes to try, as for `replay`; give it several times.", _SWEEP, "--device")
]
HostSizes = Annotated[list[str], _option("Host sizes to try.", _SWEEP, "--host")]
DiskSizes = Annotated[list[str], _option("Disk sizes to try.", _SWEEP, "--disk")]
HostPrice = Annotated[
    float, _option("Price of a byte of host memory, in bytes of device memory; for the knee.", _SWEEP, min=0)
]
Jobs = Annotated[int | None, _option("Processes. Default: one a core, at most one a simulation.", _SWEEP, min=1)]
