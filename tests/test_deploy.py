"""What lies in deploy/ speaks of flags, metrics and files that exist."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from stepwell.base.units import parse_size
from stepwell.engine.config import DiskCache
from stepwell.server.commands.settings import read_settings
from tests.test_repository import ROOT, known_flags

DEPLOY = ROOT / "deploy"


def tool(name: str) -> ModuleType:
    """A script of tools/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_document_of_metrics_shows_what_is_exported() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert tool("metrics").renewed(text) == text, "run python tools/metrics.py"


def test_every_metric_has_a_help_text_of_its_own() -> None:
    texts = [family.documentation for family in tool("metrics").families()]
    assert all(texts) and len(set(texts)) == len(texts)


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def exported() -> set[str]:
    names = set()
    for family in tool("metrics").families():
        names |= {family.name, f"{family.name}_total", f"{family.name}_bucket"}
    return names


def test_dashboard_asks_for_metrics_and_labels_that_are_there() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
    labels = {label for family in tool("metrics").families() for sample in family.samples for label in sample.labels}
    for expression in expressions(board):
        assert set(re.findall(r"stepwell_\w+", expression)) <= exported(), expression
        used = re.findall(r"by \(([\w, ]+)\)", expression)
        assert {label for group in used for label in group.split(", ")} <= labels, expression
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(places) == len(set(places))


def test_document_of_metrics_asks_for_metrics_that_are_there() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert set(re.findall(r"stepwell_\w+", text)) <= exported()


def variables() -> set[str]:
    return {"STEPWELL_MODEL", *("STEPWELL_" + flag[2:].replace("-", "_").upper() for flag in known_flags())}


def test_unit_and_container_name_flags_and_variables_that_exist() -> None:
    for name in ("stepwell.service", "Containerfile"):
        text = (DEPLOY / name).read_text("utf-8")
        commands = re.findall(r"stepwell (?:serve|doctor) (.*)", text)
        flags = {word for command in commands for word in re.findall(r"--[a-z-]+", command)}
        assert flags <= known_flags(), name
        assert set(re.findall(r"STEPWELL_[A-Z_]+", text)) <= variables(), name
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "stepwell.service")
    settings = read_settings(str(DEPLOY / "stepwell.toml"), dict.fromkeys(_names(), False))
    waits = settings["drain_timeout"] + settings["shutdown_timeout"]
    assert int(unit["Service"]["TimeoutStopSec"]) > waits


def _names() -> set[str]:
    return {"model", *(flag[2:].replace("-", "_") for flag in known_flags())}


def test_example_of_a_config_file_can_be_meant() -> None:
    settings = read_settings(str(DEPLOY / "stepwell.toml"), dict.fromkeys(_names(), False))
    assert parse_size(settings["device_memory"]) < parse_size(settings["host_memory"])
    assert DiskCache.parse(settings["disk_cache"]).path == "/var/cache/stepwell"


def test_container_copies_what_the_package_is_built_from() -> None:
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    copied = {word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied) and "stepwell" in copied
    assert Path(ROOT / "stepwell" / "server" / "pages" / "index.html").exists()
