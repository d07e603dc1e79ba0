"""`stepwell eval`: its flags."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.extras import expect_extra
from stepwell.cache.moves import Tier
from stepwell.eval.task import SHOTS, TEST, Form, read_problems, write_questions
from stepwell.server.commands import flags

_TASK, _ENGINE, _SERVER = "Task", "Engine in this process", "Server"


class TierName(StrEnum):
    """Tiers, as people name them."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


def _of(text: str, panel: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, show_envvar=False, **more)


_PUBLIC_HELP = "The public form of the task: 1,319 questions, 3 shots as they were published, 65 at once, 256 tokens."
_SHOTS_HELP = "Solved problems before each question, the same for all; 6 by default."
_CONTEXTS_HELP = "Solved problems behind those, other ones for each question; 3 by default."
_BOOK_HELP = "Each question is among its own contexts, with its answer: for models too small to calculate."
_AT_ONCE_HELP = "Questions that are open at once; 8 by default, 1 for a tier below the device: nobody shares what another has loaded."
_SCORED_HELP = "Questions whose losses are measured: cold, resumed, and with the cache tampered with. 0: none."
_DTYPE_HELP = "float32, bfloat16 or auto. Only in float32 are a cold and a resumed answer sure to be the same."

Judged: TypeAlias = Annotated[
    str | None, typer.Argument(help="Directory of a checkpoint: the engine runs in this process.")
]
Url: TypeAlias = Annotated[str | None, _of("Judge the server at this URL instead.", _SERVER)]
TierFlag: TypeAlias = Annotated[TierName, _of("Where the last pass is to be served from.", _TASK)]
Passes: TypeAlias = Annotated[int, _of("How many times each question is asked.", _TASK, min=1)]
Public: TypeAlias = Annotated[bool, _of(_PUBLIC_HELP, _TASK)]
Questions: TypeAlias = Annotated[int | None, _of("How many; 440 by default.", _TASK, min=1)]
Shots: TypeAlias = Annotated[int | None, _of(_SHOTS_HELP, _TASK, min=0)]
Contexts: TypeAlias = Annotated[int | None, _of(_CONTEXTS_HELP, _TASK, min=0)]
OpenBook: TypeAlias = Annotated[bool, _of(_BOOK_HELP, _TASK)]
AtOnce: TypeAlias = Annotated[int | None, _of(_AT_ONCE_HELP, _TASK, min=1)]
MaxTokens: TypeAlias = Annotated[int | None, _of("Tokens of an answer at most; 96 by default.", _TASK, min=1)]
Scored: TypeAlias = Annotated[int, _of(_SCORED_HELP, _TASK, min=0)]
Data: TypeAlias = Annotated[Path, _of('Questions: lines of {"question", "answer"}, gzipped or not.', _TASK)]
Device: TypeAlias = Annotated[str, _of("cpu, cuda or auto.", _ENGINE)]
Dtype: TypeAlias = Annotated[str, _of(_DTYPE_HELP, _ENGINE)]
DeviceMemory: TypeAlias = Annotated[str | None, _of("Memory for KV and states on the device, such as 256MiB.", _ENGINE)]
HostMemory: TypeAlias = Annotated[str, _of("Memory of the host tier.", _ENGINE)]
DiskCache: TypeAlias = Annotated[str | None, _of("PATH:SIZE of the disk tier; give an empty folder.", _ENGINE)]
Deterministic: TypeAlias = Annotated[bool, _of("As of `stepwell serve`.", _ENGINE)]
Drafts: TypeAlias = Annotated[int, _of("As of `stepwell serve`.", _ENGINE, min=0)]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="End with one line of JSON.", show_envvar=False)]


@dataclass(frozen=True, slots=True)
class Usual:
    """What a form of the task sets where the caller does not."""

    questions: int
    shots: int
    contexts: int
    at_once: int
    max_tokens: int

    @classmethod
    def of(cls, public: bool, alone: bool) -> Usual:
        return cls(1319, 3, 0, 65, 256) if public else cls(440, 6, 3, 1 if alone else 8, 96)


def _or(value: int | None, usual: int) -> int:
    return usual if value is None else value


def eval_command(
    model: Judged = None,
    url: Url = None,
    api_key: flags.ChatKey = "",
    tier: TierFlag = TierName.DEVICE,
    passes: Passes = 2,
    public: Public = False,
    questions: Questions = None,
    shots: Shots = None,
    contexts: Contexts = None,
    open_book: OpenBook = False,
    at_once: AtOnce = None,
    max_tokens: MaxTokens = None,
    scored: Scored = 60,
    data: Data = TEST,
    device: Device = "auto",
    dtype: Dtype = "auto",
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = "4GiB",
    disk_cache: DiskCache = None,
    deterministic: Deterministic = False,
    num_speculative_tokens: Drafts = 0,
    as_json: Json = False,
) -> None:
    """Ask GSM8K twice, and tell whether answers through the cache are as good as those before it.

    Every prompt has a long prefix that all share, and a context of its own. With a MODEL the engine runs in this process, the last pass is
    served from --tier, and the losses of right answers are compared: cold, resumed, and with one leg of the cache zeroed, shifted or taken
    from elsewhere. With --url any OpenAI server is asked; which tier served it is told where the server tells.

    The exit status is 1 where a load failed, or a question was answered rightly in one pass and wrongly in the other.

    Examples:

        stepwell eval ./model --dtype float32 --tier host --json

        stepwell eval ./model --dtype float32 --tier disk --disk-cache /tmp/cache:8GiB

        stepwell eval --url http://127.0.0.1:8000 --public
    """
    usual = Usual.of(public, alone=url is None and tier != TierName.DEVICE)
    counts = _or(questions, usual.questions), _or(shots, usual.shots), _or(contexts, usual.contexts)
    limits = _or(max_tokens, usual.max_tokens), _or(at_once, usual.at_once)
    wanted = Wanted(Form(*counts, open_book, marks=public), data, Tier[tier.name], passes, scored, *limits, as_json)
    sizes = {"device_memory": device_memory, "host_memory": host_memory, "disk_cache": disk_cache}
    engine = sizes | {"model": model, "device": device, "dtype": dtype, "deterministic": deterministic}
    _leave(wanted, url, api_key, engine | {"num_speculative_tokens": num_speculative_tokens})


def _leave(wanted: Wanted, url: str | None, api_key: str, engine: dict[str, Any]) -> None:
    """Judge, and end the command with its status."""
    try:
        given = {name: value for name, value in engine.items() if value is not None}
        status = judge(wanted, url, api_key, given)
    except StepwellError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(2) from None
    raise typer.Exit(status)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be done; fields are as the flags of their names."""

    form: Form
    data: Path
    tier: Tier
    passes: int
    scored: int
    max_tokens: int
    at_once: int
    as_json: bool


def _expect_one(url: str | None, model: str | None) -> None:
    """Raise ConfigError unless there is either a server or a checkpoint."""
    from stepwell.engine.hub import expect_checkpoint

    if (url is None) == (model is None):
        raise ConfigError("give either MODEL, the directory of a checkpoint, or --url, and not both")
    if url is not None:
        expect_extra("client", "stepwell eval --url")
    else:
        expect_extra("engine", "stepwell eval MODEL")
    if model is not None:
        expect_checkpoint(model)


def judge(wanted: Wanted, url: str | None, api_key: str, engine: dict[str, Any]) -> int:
    """Run it and show what was found; returns the exit status."""
    _expect_one(url, engine.get("model"))  # before libraries are imported, which takes seconds
    from stepwell.eval.remote import RemoteSubject
    from stepwell.eval.run import evaluate, show
    from stepwell.replay.wire import Server

    asked = write_questions(wanted.form, read_problems(wanted.data), read_problems(SHOTS))
    if url is None and wanted.scored and len(asked) < 2:
        raise ConfigError(
            "--scored takes another question's state for the first one's: give two --questions or more, or --scored 0"
        )
    console = Console(stderr=wanted.as_json)
    if url is not None:
        remote = RemoteSubject(Server(url, api_key=api_key or "none"), wanted.max_tokens, wanted.at_once)
        verdict = evaluate(remote, asked, wanted.tier, wanted.passes, 0, console)
    else:
        from stepwell.engine.config import engine_config
        from stepwell.eval.local import LocalSubject

        with LocalSubject(engine_config(engine), wanted.tier, wanted.max_tokens, wanted.at_once) as local:
            verdict = evaluate(local, asked, wanted.tier, wanted.passes, min(wanted.scored, len(asked)), console)
    show(verdict, console)
    if wanted.as_json:
        print(json.dumps(verdict.figures()))
    flips = verdict.matched.flips if verdict.matched is not None else 0
    return 1 if flips or verdict.loads_failed else 0
