"""What a chat costs to render in a process of its own, against the same in place: microseconds until the text, and of this process's time.

python bench/templates.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import uvloop

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.prompt.beside import Beside
from stepwell.server.prompt.template_wire import Job
from stepwell.server.prompt.templates import InPlace, TemplateProcesses, Templates
from stepwell.testing.agents import write_agent_tokenizer

_TIMES = 100


async def timed(templates: Templates, messages: int) -> tuple[float, float]:
    """Microseconds for a conversation: until its text is there, and of this process."""
    job = Job([{"role": "user", "content": "hello there " * 20}] * messages)
    began, used = time.perf_counter(), time.process_time()
    for _ in range(_TIMES):
        await templates.render(job, 300 * messages)
    return (time.perf_counter() - began) / _TIMES * 1e6, (time.process_time() - used) / _TIMES * 1e6


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        template = Tokenizer.load(str(write_agent_tokenizer(Path(folder), 400, 4096))).chat
    away, here = TemplateProcesses(template, Beside()), InPlace(template, Beside())
    await away.start()
    told = {}
    for messages in (1, 4, 200):
        times = [[await timed(one, messages) for one in (here, away)] for _ in range(rounds)]
        for i, name in enumerate(("in place", "process")):
            told[f"{messages} messages, {name}"] = [round(min(pair[i][j] for pair in times)) for j in (0, 1)]
    away.close()
    print(json.dumps(told))


if __name__ == "__main__":
    uvloop.run(main())
