"""Launch lines of other engines, read as ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from stepwell.base.errors import ConfigError
from stepwell.server.commands.peer_flags import (
    FLAGS,
    MANY,
    As,
    Needless,
    Only,
    PeerFlag,
    Refused,
    Switch,
    Unpacked,
    Within,
)

_FLAG_COLUMNS = 24

_PEERS: Mapping[str, PeerFlag] = {name: row for row in FLAGS for name in row.names}


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line with our flags alone, and a sentence for each of another engine's that means nothing here."""

    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read_launch(arguments: Sequence[str], own: Mapping[str, int], model_named: bool = False) -> Launch:
    """The same command line in our flags. Raises ConfigError for a flag of another engine that is refused here.

    own          how many values each of our own flags takes; these are left as they are, but where they may stand for several
    model_named  MODEL is known from elsewhere: the last of several values is then not taken for it
    """
    line = _Line(own)
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            line.positional += waiting
            break
        if not word.startswith("-") or word == "-":
            line.positional.append(word)
        else:
            line.option(word, waiting)
    return line.launch(model_named)


@dataclass(slots=True)
class _Line:
    own: Mapping[str, int]
    options: list[str] = field(default_factory=list)
    positional: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    many: list[int] = field(default_factory=list)  # places of last values, where more than one was given

    def option(self, word: str, waiting: list[str]) -> None:
        name, equals, value = word.partition("=")
        name, row = self._find(name)
        if row is None or (isinstance(row.fate, Switch) and (equals or (waiting[:1] and waiting[0] in row.fate.words))):
            takes = self.own.get(name, 0)
            self.options += [f"{name}={value}" if equals else name, *(_taken(waiting, takes) if not equals else ())]
            return
        values = [value] if equals else _taken(waiting, row.takes)
        if len(values) < row.takes or (row.takes == MANY and not values):
            raise ConfigError(f"{name} needs a value")
        self._carry_out(name, row, values)

    def launch(self, model_named: bool) -> Launch:
        if not (self.positional or model_named) and self.many:
            at = self.many[-1]  # `--served-model-name NAME MODEL`
            self.positional.append(self.options[at])
            del self.options[at - 1 : at + 1]
        return Launch((*self.options, *(("--", *self.positional) if self.positional else ())), tuple(self.notes))

    def _find(self, name: str) -> tuple[str, PeerFlag | None]:
        """The flag as it is known, which may be written with underscores or with a part behind a dot; our own come first."""
        for known in (name, dashed := name.replace("_", "-"), dashed.partition(".")[0]):
            row = _PEERS.get(known)
            if row is not None and (row.takes == MANY or isinstance(row.fate, Switch) or known not in self.own):
                return known, row
            if known in self.own:
                return known, None
        return name, None

    def _carry_out(self, name: str, row: PeerFlag, values: list[str]) -> None:
        match row.fate:
            case As(ours, words, unit):
                for value in _spread(values) if row.takes == MANY else values:
                    value = dict(words).get(value, value)
                    self._write(ours, value + unit if value.replace(".", "", 1).isdecimal() else value)
                if not values:
                    self.options.append(ours)
                if len(values) > 1 and ours == "--served-model-name":  # a key must never be taken for a path
                    self.many.append(len(self.options) - 1)
            case Switch(ours, value, _):
                self.options += [ours, value]
            case Within(ours, inner, kind, kinds, why):
                told = _object(name, values[0])
                if told.get(kind) not in kinds:
                    self.notes.append(f"{name} {values[0]} changes nothing: {why}")
                elif inner in told:
                    self._write(ours, str(told[inner]))
                else:
                    raise ConfigError(f"{name} {values[0]} needs {inner}, such as 3")
            case Unpacked() as fate:
                self._unpack(name, _object(name, values[0]), fate)
            case Needless(why):
                self.notes.append(f"{' '.join([name, *values])} changes nothing: {why}")
            case Only(allowed, why):
                if values[0] not in allowed:
                    raise ConfigError(
                        f"{name} {values[0]} is not supported ({why}): known here are {', '.join(allowed)}"
                    )
                self.notes.append(f"{name} {values[0]} changes nothing: {why}")
            case Refused(why):
                raise ConfigError(f"{name} is not supported: {why}")

    def _unpack(self, name: str, told: dict[str, Any], fate: Unpacked) -> None:
        known = {fate.switch, *fate.needless, *(inner for inner, _, _ in fate.flags)}
        if unknown := sorted(set(told) - known):
            raise ConfigError(f"{name} has unknown fields: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        off, word = fate.off
        if told.get(fate.switch) is not True or told.get(off) == word:
            self.notes.append(f"{name} changes nothing: it does not say {fate.switch}, or has {off} {word}")
            return
        for inner, ours, default in fate.flags:
            value = told.get(inner)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name} needs a text as {inner}, not {json.dumps(value)}")
            if value or default:
                self._write(ours, value or default or "")
        for inner in (inner for inner in fate.needless if inner in told and inner != off):
            self.notes.append(
                f"{name}: {inner} changes nothing: 10,000 batches may wait, and as many can be asked for again"
            )

    def _write(self, ours: str, value: str) -> None:
        if ours:
            self.options += [ours, value]
        else:
            self.positional.append(value)


def _taken(waiting: list[str], takes: int) -> list[str]:
    """The next values, taken away from those that wait."""
    count = takes
    if takes == MANY:
        count = next((i for i, word in enumerate(waiting) if word.startswith("-")), len(waiting))
    values = waiting[:count]
    del waiting[:count]
    return values


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{name} needs a JSON object, not {text}")
    return found


def _spread(values: Iterable[str]) -> list[str]:
    """Several values, where one of them may be a JSON list."""
    spread: list[str] = []
    for value in values:
        try:
            found = json.loads(value) if value.startswith("[") else [value]
        except ValueError:
            found = [value]
        spread += [str(item) for item in found]
    return spread


class LaunchCommand(TyperCommand):
    """A command that also takes launch lines of other engines, and says what it makes of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            # a file of settings, which is read later, may name the model
            elsewhere = any(_is_set(ctx, param) for param in self.params) or any(
                word == "--config" or word.startswith("--config=") for word in args
            )
            launch = read_launch(args, _own(self.params), elsewhere)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
        for note in launch.notes:
            typer.echo(f"note: {note}", err=True)
        return super().parse_args(ctx, list(launch.arguments))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by group, each text beside its flag or, behind a long one, below it: for terminals of 80 columns."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None:
                rows.setdefault(_group(param), []).append(row)
        for group, told in rows.items():
            with formatter.section(group):
                formatter.write_dl(told, col_max=_FLAG_COLUMNS)


def _group(param: Any) -> str:
    return "Arguments" if isinstance(param, TyperArgument) else param.rich_help_panel or "Options"


def _own(params: Sequence[Any]) -> dict[str, int]:
    """How many values each option takes."""
    options = [param for param in params if isinstance(param, TyperOption)]
    return {"--help": 0, "-h": 0} | {
        name: 0 if param.is_flag else 1 for param in options for name in (*param.opts, *param.secondary_opts)
    }


def _is_set(ctx: Any, param: Any) -> bool:
    """Whether this is the MODEL, and the environment names it."""
    return isinstance(param, TyperArgument) and param.value_from_envvar(ctx) is not None
