"""The frame of every page: one file, no network, light and dark, as wide as a phone or a desk."""

from __future__ import annotations

from html import escape

_STYLE = """
:root { color-scheme: light dark; --bg: #fbfbfa; --ink: #1d2227; --soft: #5b646d; --rule: #d9dcdf; --card: #ffffff;
  --device: #1a7a58; --host: #2b6cb3; --disk: #7d4fb5; --lost: #b9500f; --bound: #1d2227; --shade: #8887;
  --sixth: #c2336b; --seventh: #7d8a1e; --eighth: #3aa0c4; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171a; --ink: #e4e7ea; --soft: #9aa4ad; --rule: #333a41; --card: #1b1f23;
  --device: #4cc197; --host: #6fa9ea; --disk: #b48aea; --lost: #ef8f4d; --bound: #e4e7ea; --shade: #0009;
  --sixth: #ee7d9d; --seventh: #bccb55; --eighth: #7fd0ec; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem clamp(.8rem, 3vw, 2rem) 3rem; max-width: 66rem; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .2rem 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .2rem; } h3 { font-size: .9rem;
  margin: .8rem 0 .1rem; }
p { margin: .2rem 0 .6rem; color: var(--soft); max-width: 48rem; } code { overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.2rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: .5rem; padding: .6rem .8rem; }
.tiles b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; } .tiles span { display: block; }
.tiles small { color: var(--soft); }
.bar { display: flex; height: 1.6rem; border-radius: .3rem; overflow: hidden; margin: .4rem 0; }
.plot { display: grid; grid-template-columns: 3.6rem 1fr; gap: .2rem .4rem; margin: .3rem 0 .8rem; }
.plot svg { width: 100%; height: 13rem; display: block; background: var(--card); border: 1px solid var(--rule);
  border-radius: .3rem; }
.plot.low svg { height: 5.5rem; }
.plot .y { display: flex; flex-direction: column; justify-content: space-between; text-align: right; }
.plot .x { grid-column: 2; position: relative; height: 1.2rem; }
.plot .x span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.plot .x .first { transform: none; }
.plot .x .last { transform: translateX(-100%); }
.plot .x, .plot .y { color: var(--soft); font-size: .75rem; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; } .legend i { display: inline-block; width: .8rem;
  height: .8rem;
  border-radius: .15rem; margin-right: .35rem; vertical-align: -.08rem; }
.many { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 1.4rem; }
.device { fill: var(--device); background: var(--device); } .host { fill: var(--host); background: var(--host); }
.disk { fill: var(--disk); background: var(--disk); } .lost { fill: var(--lost); background: var(--lost); }
.needed { background: var(--soft); }
i.bound { background: var(--bound); } .shade { fill: var(--shade); }
polyline.line { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; background: none; stroke: var(--bound); }
polyline.device { stroke: var(--device); } polyline.host { stroke: var(--host); } polyline.disk { stroke: var(--disk); }
polyline.lost { stroke: var(--lost); } polyline.sixth { stroke: var(--sixth); } polyline.seventh { stroke: var(--seventh); }
polyline.eighth { stroke: var(--eighth); } polyline.dashed { stroke-dasharray: 6 4; }
i.sixth { background: var(--sixth); } i.seventh { background: var(--seventh); } i.eighth { background: var(--eighth); }
path.dot { fill: none; stroke-width: 7; stroke-linecap: round; vector-effect: non-scaling-stroke; stroke: var(--bound); }
path.dot.device { stroke: var(--device); } path.dot.host { stroke: var(--host); } path.dot.disk { stroke: var(--disk); }
path.dot.lost { stroke: var(--lost); } path.dot.sixth { stroke: var(--sixth); } path.dot.seventh { stroke: var(--seventh); }
path.dot.eighth { stroke: var(--eighth); } path.dot.knee { stroke-width: 16; opacity: .35; }
.fall { display: grid; grid-template-columns: minmax(6.5rem, max-content) 1fr minmax(5rem, max-content); gap: .25rem .6rem;
  align-items: center;
  font-size: .85rem; margin: .5rem 0; }
.fall div { position: relative; height: 1.1rem; background: var(--card); border: 1px solid var(--rule); border-radius: .2rem;
  overflow: hidden; }
.fall div i { position: absolute; top: 0; bottom: 0; } .fall div u { position: absolute; top: 0; bottom: 0; width: 2px;
  background: var(--bound); }
.fall b { font-weight: 500; text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; margin: .4rem 0;
  font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def shell(title: str, body: str) -> str:
    """A whole HTML document. `body` is markup; `title` is text."""
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><link rel="icon" href="data:,">'
    )
    return f"{head}<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
