"""The template process: renders conversations, one after the other.

    python -m stepwell.server.prompt.template_process      a Start on standard input, then jobs; answers on standard output

It ends with its input, so with its server. A template that takes too much processor time ends it, whatever it is doing. What would take
too much memory is refused. The server starts it again.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from stepwell.base.errors import RequestError
from stepwell.engine.text.chat_template import ChatTemplate, TakesTooMuch
from stepwell.server.prompt import template_wire as wire

_MEMORY = 2 * 2**30
"""Bytes of address space beyond what is mapped before the first conversation: many times what the largest body takes by default."""
_GROWTH, _ROOM = 8, 4 * 2**20
"""A text may have this many characters for each byte of its conversation, and these besides: for what a template says by itself."""


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the input ends."""
    start = wire.start(jobs)
    if start is None:
        return
    template = ChatTemplate.alone(start.sources, start.special)
    limit_memory(_MEMORY)
    _send(answers, wire.Ready())
    while (asked := wire.job(jobs)) is not None:
        signal.setitimer(signal.ITIMER_PROF, start.seconds)  # its signal ends the process
        answer = rendered(template, *asked)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(answers, answer)


def rendered(template: ChatTemplate, job: wire.Job, size: int) -> wire.Text | wire.Refused:
    """What `template` makes of a conversation of `size` bytes."""
    try:
        text = job.rendered(template)
        if len(text) > (most := _GROWTH * size + _ROOM):
            raise TakesTooMuch.of(f"makes {len(text):,} characters, more than {most:,},")
    except RequestError as error:
        return wire.Refused(str(error), error.param or "messages", isinstance(error, TakesTooMuch))
    return wire.Text(text)


def hide_torch() -> None:
    """From now on this process finds no PyTorch. Transformers imports it wherever it is, though a template needs none of it: seconds, and
    with CUDA some gigabytes of address space."""
    sys.modules["torch"] = None  # type: ignore[assignment]


def limit_memory(more: int) -> None:
    """Let this process map so many bytes more than it has now, which Linux tells in /proc."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more, mapped + more))


def _send(stream: BinaryIO, answer: wire.Answer) -> None:
    try:
        frame = wire.framed(answer)
    except RequestError as error:  # a text that is no UTF-8
        frame = wire.framed(wire.Refused(str(error), "messages", False))
    stream.write(frame)
    stream.flush()


def main() -> None:
    """Entry of the process. Signals of the terminal are the server's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_torch()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer
    try:
        serve(sys.stdin.buffer, answers)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the server has gone


if __name__ == "__main__":
    main()
