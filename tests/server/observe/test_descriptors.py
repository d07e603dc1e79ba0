"""What is said when file descriptors run out."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Iterator

import pytest

from stepwell.server.observe.descriptors import exhausted, report


@pytest.fixture
def few() -> Iterator[list[int]]:
    """A process that may open a few descriptors more; what a test puts into the list is closed behind it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 32, hard))
    try:
        yield opened
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def exhaust(opened: list[int]) -> None:
    try:
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass


def test_a_process_without_descriptors_is_known_as_such_and_recovers(few: list[int]) -> None:
    assert not exhausted()
    exhaust(few)
    assert exhausted()
    while few:
        os.close(few.pop())
    assert not exhausted()


def test_it_is_told_once_a_period(few: list[int], caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        reporting = asyncio.create_task(report(every=0.001, period=600.0))
        await asyncio.sleep(0.02)
        assert not caplog.records
        exhaust(few)
        await asyncio.sleep(0.1)
        reporting.cancel()

    with caplog.at_level(logging.WARNING, "stepwell.server"):
        asyncio.run(run())
    (line,) = caplog.records
    assert "file descriptors are in use" in line.message
