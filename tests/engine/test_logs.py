"""Logs in both forms."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest

from stepwell.base.errors import ConfigError
from stepwell.engine.logs import JsonFormatter, TextFormatter, form_in_use, set_up


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("stepwell.server", logging.WARNING, __file__, 1, message, args, None)
    vars(made).update(extra)
    return made


def test_a_machine_reads_one_object_with_whatever_was_added() -> None:
    line = JsonFormatter().format(record("of %d\nlines", 2, request_id="r1", seconds=0.5, color_message="…"))
    assert "\n" not in line
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning",
        "logger": "stepwell.server",
        "message": "of 2\nlines",
        "request_id": "r1",
        "seconds": 0.5,
    }


def test_an_error_brings_its_traceback_on_the_same_line() -> None:
    made = record("failed")
    try:
        raise RuntimeError("the cause")
    except RuntimeError:
        made.exc_info = sys.exc_info()
    line = JsonFormatter().format(made)
    assert "\n" not in line and "the cause" in json.loads(line)["error"]


def test_people_read_the_additions_at_the_end() -> None:
    line = TextFormatter().format(record("hello", request_id="r1", call={"prompt": 5}))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING stepwell.server: hello request_id=r1", line)


def test_a_callers_text_makes_no_line_of_its_own() -> None:
    line = TextFormatter().format(
        record("GET %s", "/x\n2026-11-30 ERROR stepwell.engine: forged\x1b[2J\u2028", request_id="a\rb")
    )
    assert line.isprintable() and line.endswith("forged\\x1b[2J\\u2028 request_id=a\\rb")


def test_what_libraries_say_of_their_work_is_for_those_who_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    root, own = logging.getLogger(), logging.getLogger("stepwell")
    for logger in (root, own):
        monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(root, "handlers", [])
    set_up("info", "text")
    assert (root.level, own.level) == (logging.WARNING, logging.INFO)
    monkeypatch.setattr(root, "handlers", [])
    set_up("debug", "text")
    assert (root.level, own.level) == (logging.DEBUG, logging.DEBUG)


@pytest.mark.parametrize(("level", "form", "named"), [("loud", "text", "--log-level"), ("info", "xml", "--log-format")])
def test_unknown_words_are_refused(level: str, form: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        set_up(level, form)


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_form_in_use_is_that_which_was_set_up(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    root, own = logging.getLogger(), logging.getLogger("stepwell")
    for logger in (root, own):
        monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(root, "handlers", [])
    set_up("info", form)
    assert form_in_use() == form
