"""The flags of `stepwell chat` and `stepwell batch`, and how a command gets parameters declared elsewhere. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Annotated, TypeVar, get_type_hints

import typer

_Command = TypeVar("_Command", bound=Callable[..., None])


def like(settings: type) -> Callable[[_Command], _Command]:
    """Give a command, which takes `**values`, a parameter for each annotation of a class, behind those that it names itself."""

    def give(command: _Command) -> _Command:
        own = [p for p in signature(command, eval_str=True).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        own = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own]
        command.__signature__ = Signature([*own, *_parameters(settings)])  # type: ignore[attr-defined]
        return command

    return give


def _parameters(settings: type) -> list[Parameter]:
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=vars(settings).get(name, Parameter.empty), annotation=kind)
        for name, kind in get_type_hints(settings, include_extras=True).items()
    ]


BatchFile = Annotated[str, typer.Argument(help="File of calls, one a line, as OpenAI's batches have them.")]
BatchOutput = Annotated[
    str | None, typer.Option(help="File that answers are added to. Default: FILE.out.", show_envvar=False)
]
BatchUrl = Annotated[str, typer.Option(help="URL of the server.", show_envvar=False)]
AtOnce = Annotated[int, typer.Option(help="Calls that are open at once.", min=1, show_envvar=False)]

DeviceMemory = Annotated[str | None, typer.Option(help="Size of the device arena, such as 8GiB.", show_envvar=False)]
HostMemory = Annotated[str, typer.Option(help="Size of the host tier, such as 32GiB; 0 for none.", show_envvar=False)]
Target = Annotated[str, typer.Argument(help="URL of a server, or directory of a checkpoint.")]
ChatKey = Annotated[str, typer.Option(help="Key of the server. Better from STEPWELL_API_KEY.", show_envvar=False)]
System = Annotated[str, typer.Option(help="Instructions for the model.", show_envvar=False)]
ChatTokens = Annotated[
    int | None,
    typer.Option(help="Most tokens of an answer. Default: what the context has room for.", show_envvar=False),
]
Temperature = Annotated[float, typer.Option(help="0 for the likeliest token each time.", min=0, show_envvar=False)]
History = Annotated[
    str, typer.Option(help='File that keeps what you typed, for the arrow keys; "" for none.', show_envvar=False)
]
