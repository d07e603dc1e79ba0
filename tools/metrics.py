"""The table of docs/metrics.md, from the metrics that a server exports: python tools/metrics.py"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from stepwell.engine.process.messages import Stats
from stepwell.server.observe.metrics import Metrics

_BEGIN, _END = "<!-- metrics -->", "<!-- end of metrics -->"


def families() -> list[Metric]:
    """Everything that /metrics shows, at its start."""
    metrics = Metrics()
    metrics.watch(Stats, lambda: True)
    return [family for family in metrics.registry.collect() if not family.name.endswith("_created")]


def table(metrics: Iterable[Metric]) -> str:
    """Names as they are scraped, with type, labels, their values, and help."""
    rows = ["| name | type | labels | |", "|---|---|---|---|"]
    for family in sorted(metrics, key=lambda f: f.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {_labels(family)} | {family.documentation} |")
    return "\n".join(rows)


def _labels(family: Metric) -> str:
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            if label != "le" and not sample.name.endswith("_created"):
                values.setdefault(label, {})[value] = None
    return "; ".join(f"`{label}`: {', '.join(found)}" for label, found in values.items())


def renewed(text: str) -> str:
    """`text` of the document with its table as it ought to be."""
    head, _, rest = text.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n{table(families())}\n{_END}{tail}"


def main() -> None:
    from pathlib import Path

    document = Path(__file__).parents[1] / "docs" / "metrics.md"
    document.write_text(renewed(document.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
