"""A tier has one colour wherever it is drawn: the server's page, pages of replay and plan, the Grafana dashboard, the README's picture."""

from __future__ import annotations

import json
import re

from stepwell.replay.shell import _STYLE
from tests.test_repository import ROOT

DRAWN = ("device", "host", "disk", "recomputed")


def colours(css: str) -> tuple[dict[str, str], dict[str, str]]:
    """What each tier is drawn in, light and dark; recomputed tokens are `lost` in the pages of replay."""
    named = [(name.replace("lost", "recomputed"), colour) for name, colour in re.findall(r"--(\w+): (#\w{6})", css)]
    first = {name: next(colour for other, colour in named if other == name) for name in DRAWN}
    second = {name: [colour for other, colour in named if other == name][1] for name in DRAWN}
    return first, second


def test_tiers_have_one_palette() -> None:
    light, dark = colours((ROOT / "stepwell/server/pages/page.css").read_text("utf-8"))
    assert len(set(light.values())) == len(set(dark.values())) == len(DRAWN)
    assert colours(_STYLE) == (light, dark)
    panels = json.loads((ROOT / "deploy/grafana.json").read_text("utf-8"))["panels"]
    (sources,) = (panel for panel in panels if panel["title"] == "Prompt tokens by where they came from")
    told = {
        one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"]
        for one in sources["fieldConfig"]["overrides"]
    }
    assert told == dark, "Grafana is dark unless it is told otherwise"
    picture = (ROOT / "docs/idea.svg").read_text("utf-8")
    assert f".device {{ fill: {light['device']} }}" in picture and f".host {{ fill: {light['host']} }}" in picture
