"""Grammars tried out in processes of their own: what reads them cannot be interrupted, and there is always one that takes it for ever.

python -m stepwell.server.read.trial      answers each grammar with its fault; one line of JSON each, until its input ends
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import orjson
from llguidance import LLMatcher, LLTokenizer

from stepwell.base.children import ONE_THREAD, command, environment
from stepwell.engine.grammar.process import reading_threads

SECONDS = 20.0
"""Most that one grammar may take, many times what the largest schemas of everyday use do."""
FOLLOWED = 64
"""Tokens of an answer for which a grammar is followed on trial."""
FOLLOWING = 0.5
"""Seconds of processor time that they may take, where everyday schemas take a thousandth of it."""
_MEMORY = 4 * 2**30  # bytes of one process
_MODULE = "stepwell.server.read.trial"


class Trials:
    """Owns the processes: as many as are asked at a time, started when they are needed. Safe to call from several threads."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _end, self._idle)

    def fault(self, grammar: str) -> str:
        """Why nothing can follow `grammar`; empty where something can. Blocks for `seconds` at most."""
        process = self._process()
        limit = threading.Timer(self._seconds, process.kill)
        limit.start()
        answer = _ask(process, grammar)
        limit.cancel()
        if answer is None:
            _end([process])
            return f"it takes more than {self._seconds:g} s, or more memory than it is given, to read: make it simpler"
        self._idle.append(process)
        return answer

    def _process(self) -> subprocess.Popen[bytes]:
        """One that has nothing to do; those that have ended meanwhile are not asked."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end([process])
        return subprocess.Popen(
            command(_MODULE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(**ONE_THREAD)
        )


def _ask(process: subprocess.Popen[bytes], grammar: str) -> str | None:
    """What the process says; None where it has ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(orjson.dumps(grammar) + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    return str(orjson.loads(line)) if line.endswith(b"\n") else None


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def fault_of(grammar: str) -> str:
    """Why nothing can follow `grammar`, read here and now with a vocabulary of bytes; empty where something can."""
    trial = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    fault = str(trial.get_error()) if trial.is_error() else _followed(trial)
    return " ".join(fault.split())[:200]


def _followed(trial: LLMatcher) -> str:
    """Why it cannot be followed, after some tokens of an answer; empty where it can. Each step of every answer waits for such masks."""
    began = time.thread_time()
    for step in range(FOLLOWED):
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(trial.compute_bitmask(), np.uint8), bitorder="little"))
        if trial.is_error() and not step:
            return "no text follows it"
        if time.thread_time() - began > FOLLOWING:
            return f"following it for {step + 1} tokens takes more than {FOLLOWING:g} s: make it simpler"
        token = int(allowed[step % len(allowed)]) if len(allowed) else None
        if token is None or trial.is_error() or not trial.consume_tokens([token]) or trial.is_stopped():
            break
    return ""


def _serve() -> None:
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(orjson.dumps(fault_of(orjson.loads(line))) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Entry of the process. Signals of the terminal are the server's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    reading_threads(1).submit(_serve).result()


if __name__ == "__main__":
    main()
