"""The page of a replay: whole, self-contained, and readable by a browser at any width."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.replay.cost import CostModel
from stepwell.replay.lanes import LaneRules
from stepwell.replay.ledger import Ledger
from stepwell.replay.machine import MachineSizes
from stepwell.replay.page import _carried, format_tokens, page
from stepwell.replay.plots import round_bytes, round_up, times
from stepwell.replay.policies import titled
from stepwell.replay.report import Course, Summary, summarise
from stepwell.replay.simulate import Phases
from stepwell.replay.simulated import Setting, simulated
from stepwell.replay.synthetic import Shape, synthetic
from tests.browser import PHONE, Browser, browser, missing

SECTIONS = [
    "Where prompt tokens came from",
    "Hit over time",
    "Why tokens were recomputed",
    "Copies between tiers",
    "Conversations",
    "Latency",
    "Figures",
    "Settings",
]


@pytest.fixture(scope="module")
def summary() -> Summary:
    trace = synthetic(10, 3, Shape(scale=0.1, turns=(20, 0.5), branch=0.05))
    told = (("trace", "<script>alert(1)</script>"), ("lanes", "5"))
    setting = Setting(trace, LaneRules(lanes=5, seed=1), Phases(60.0, 400.0), CostModel(), told=told)
    return simulated(setting, MachineSizes(device_tokens=25_000, host_tokens=300_000, rung_tokens=300))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def test_the_page_has_every_part_and_stands_alone(summary: Summary) -> None:
    text = page(summary)
    assert re.findall(r"<h2>(.*?)</h2>", text) == SECTIONS
    assert "<script" not in text, "what is not ours is escaped, and we need none"
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_the_parts_of_a_prompt_fill_its_bar(summary: Summary) -> None:
    text = page(summary)
    drawn = 0
    for plot in text.split("<h3>"):
        bars = re.findall(r"<g><title>turn [^<]*: ([\d,]+) tokens[^<]*</title>(.*?)</g>", plot)
        prompts = [int(prompt.replace(",", "")) for prompt, _ in bars]
        for prompt, (_, bar) in zip(prompts, bars, strict=True):
            height = sum(float(h) for h in re.findall(r'height="([\d.]+)"', bar))
            assert height == pytest.approx(100 * prompt / round_up(max(prompts)), abs=0.05)
        drawn += len(bars)
    assert drawn > 40
    row = next(r for r in summary.rows if r.host and r.recomputed)
    assert f"{row.prompt:,} tokens = {row.device:,} device + {row.host:,} host" in text


def test_the_waterfall_ends_with_the_last_recomputed_token(summary: Summary) -> None:
    bars = re.findall(r'style="left:([\d.]+)%;width:([\d.]+)%', page(summary))
    assert len(bars) >= 2
    assert float(bars[-1][0]) + float(bars[-1][1]) == pytest.approx(100.0, abs=0.3)
    for (left, width), (after, _) in pairwise(bars):
        assert float(left) + float(width) == pytest.approx(float(after), abs=0.2)


def test_a_replay_without_requests_has_a_page_too() -> None:
    text = page(summarise(Ledger(start=0.0), Course("live", (), 0.0, 0.0)))
    assert "Replay, live" in text
    assert "nan" not in text


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (999, "999"), (1500, "1.5k"), (2.5e6, "2.5M"), (3e9, "3.0G")])
def test_tokens_are_written_short(count: float, text: str) -> None:
    assert format_tokens(count) == text


@pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, 1280])
def test_a_browser_shows_it_without_complaint(
    summary: Summary, tmp_path: Path, chromium: Browser, width: int, scheme: str
) -> None:
    (tmp_path / "report.html").write_text(page(summary), "utf-8")
    chromium.open(tmp_path / "report.html", width, scheme)  # type: ignore[arg-type]
    assert chromium.complaints() == []
    assert chromium.ask("document.querySelectorAll('h2').length") == len(SECTIONS)
    assert chromium.ask("innerWidth") == width
    assert chromium.ask("document.documentElement.scrollWidth") <= width, "nothing hangs over the edge"
    assert chromium.ask("performance.getEntriesByType('resource').length") == 0
    thin = "[...document.querySelectorAll('.plot svg')].filter(s => s.getBoundingClientRect().width < 250).length"
    assert chromium.ask(thin) == 0
    ground = chromium.ask("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (scheme == "dark")


@pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
def test_the_browser_would_notice(tmp_path: Path, chromium: Browser) -> None:
    (tmp_path / "bad.html").write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('no')</script>")
    chromium.open(tmp_path / "bad.html", PHONE, "light")
    assert len(chromium.complaints()) >= 1


@given(st.floats(1e-6, 1e15), st.sampled_from([1.0, 2.0**20]))
def test_tops_of_axes_are_round_and_near(value: float, base: float) -> None:
    top = round_up(value, base)
    assert value * (1 - 1e-6) <= top <= 2.01 * value
    digits = f"{top / base:.6e}".split("e")[0]
    assert digits in {f"{step}.000000" for step in (1, 2, 4, 6, 8)}


def test_bytes_are_round_in_the_unit_they_are_written_in() -> None:
    assert round_bytes(700 * 2**20) == 800 * 2**20 and round_bytes(3 * 2**30) == 4 * 2**30 and round_bytes(0) == 1


def test_models_of_other_engines_are_called_so() -> None:
    assert titled("ladder") == "ladder" and titled("vllm") == "vllm (modelled)"


@given(end=st.floats(1, 1e6))
def test_times_stand_at_round_seconds_where_they_belong(end: float) -> None:
    ticks = times(end)
    seconds = [float(tick.text.removesuffix(" s").replace(",", "")) for tick in ticks]
    assert 3 <= len(ticks) <= 7 and seconds[0] == 0
    assert all(abs(tick.at * end - at) <= 1e-4 * end for tick, at in zip(ticks, seconds, strict=True))
    digits = f"{seconds[1]:.6e}"
    assert digits[0] in "12468" and set(digits[2:8]) == {"0"}


def test_a_span_in_which_nothing_was_sent_shifts_nothing() -> None:
    parts, wholes = np.array([[0.0], [1], [0], [0], [3]]), np.array([0.0, 4, 0, 0, 4])
    assert _carried(parts, wholes)[:, 0].tolist() == [0.25, 0.25, 0.25, 0.25, 0.75]
