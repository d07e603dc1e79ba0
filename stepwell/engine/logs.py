"""Logs as people read them, or as machines do: one JSON object a line. Server and engine process write the same form."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

from stepwell.base.errors import ConfigError

LogFormat: TypeAlias = Literal["text", "json"]

LEVELS = ("debug", "info", "warning", "error")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "message"}`, whatever was given as `extra`, and `error` where a traceback belongs to it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`date time LEVEL logger: message name=value …`, the values being those given as `extra`, but for mappings: these are for machines.

    Control characters are escaped: a caller's text, such as the path that it asked for, makes no lines of its own.
    """

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        given = {name: value for name, value in vars(record).items() if name not in _OWN}
        extra = "".join(f" {name}={value}" for name, value in given.items() if not isinstance(value, Mapping))
        return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], super().formatMessage(record) + extra)


def set_up(level: str | int, form: str) -> None:
    """Write all logs of this process to standard error, in this form. Raises ConfigError, naming the flag."""
    if isinstance(level, str) and level not in LEVELS:
        raise ConfigError(f"--log-level {level!r} is unknown: use one of {', '.join(LEVELS)}")
    if form not in get_args(LogFormat):
        raise ConfigError(f"--log-format {form!r} is unknown: use one of {', '.join(get_args(LogFormat))}")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    number = logging.getLevelNamesMapping()[level.upper()] if isinstance(level, str) else level
    # What libraries have to say about their work is for those who debug.
    logging.basicConfig(level=number if number <= logging.DEBUG else max(number, logging.WARNING), handlers=[handler])
    logging.getLogger("stepwell").setLevel(number)


def form_in_use() -> LogFormat:
    """The form in which this process writes its logs, for those that it starts; text where nothing was set up."""
    return "json" if any(isinstance(one.formatter, JsonFormatter) for one in logging.getLogger().handlers) else "text"
