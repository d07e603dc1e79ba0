"""Page."""

from stepwell.replay.report import Summary


def page(summary: Summary) -> str:
    return ""
