"""Several policies on one trace, as one page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from stepwell.replay.compare import cells, failures, head
from stepwell.replay.page import KINDS
from stepwell.replay.plots import LINES, Layer, figure, legend, line, shade, table, times
from stepwell.replay.policies import policies, titled
from stepwell.replay.report import SOURCES, Summary
from stepwell.replay.shell import shell

_BINS = 60


def compare_page(found: Mapping[str, Summary]) -> str:
    """The whole document: where tokens came from, a bar a policy; the hit over time, a line a policy; the figures."""
    said = policies()
    first = next(iter(found.values()))
    settings = [(name, value) for name, value in first.course.settings if name != "policy"]
    body = [
        "<h1>Replay, policies compared</h1>",
        "<h2>Where prompt tokens came from</h2>",
        "".join(f"<h3>{escape(titled(name))}</h3>{_bar(summary)}" for name, summary in found.items()),
        legend(zip(KINDS, SOURCES, strict=True)),
        "<h2>Hit over time</h2><p>Share of the prompt tokens sent at the time that were reused, in all tiers. Shaded: warm-up.</p>",
        _over_time(found),
        "<h2>Figures</h2>",
        table(head(found.values()), [[titled(name), *cells(found, name)] for name in found]),
        "<p>Bounds differ with the requests that each had time for.</p>",
        f"<p>{escape(failures(found))}</p>",
        "<h2>Policies</h2>",
        "".join(f"<p><b>{escape(titled(name))}</b> {escape(said[name])}</p>" for name in found),
        "<h2>Settings</h2>",
        table(("setting", "value"), settings),
    ]
    return shell("Stepwell replay, policies compared", "\n".join(body))


def _bar(summary: Summary) -> str:
    parts = [
        f'<div class="{kind}" style="width:{100 * summary.share(tokens):.3f}%" title="{name} {summary.share(tokens):.2%}"></div>'
        for kind, (name, tokens) in zip(KINDS, summary.sources(), strict=True)
        if tokens
    ]
    return f'<div class="bar">{"".join(parts)}</div>'


def _over_time(found: Mapping[str, Summary]) -> str:
    end = max(summary.course.end_s for summary in found.values())
    if end <= 0:
        return ""
    drawn, names = [], []
    for i, (name, summary) in enumerate(found.items()):
        kind = LINES[i % len(LINES)]
        drawn.append(line(Layer(name, kind, _hits(summary, end)), 1.0))
        names.append((kind, titled(name)))
    start = next(iter(found.values())).start
    warm = shade(0, min(1.0, start / end), "warm-up") if start else ""
    return figure("".join(drawn) + warm, ("100%", "50%", "0%"), times(end), "hit over time") + legend(names)


def _hits(summary: Summary, end: float) -> list[float]:
    """The share reused in each of `_BINS` equal parts of [0, `end`); where nothing was sent, that of the part before."""
    sums = np.zeros((_BINS, 2))
    for row in summary.rows:
        sums[min(_BINS - 1, int(row.sent / end * _BINS))] += (row.prompt - row.recomputed, row.prompt)
    hits, last = [], 0.0
    for reused, prompt in sums.tolist():
        last = reused / prompt if prompt else last
        hits.append(last)
    return hits
