"""Law 5 for all that is held, and for answers whose decodes nobody looks at one by one."""

from __future__ import annotations

from stepwell.sched.job import Running
from stepwell.sched.loop import EngineLoop
from stepwell.testing.laws import check_holds, check_launched, require


def check_running(loop: EngineLoop) -> None:
    """Law 5 between two steps."""
    check_holds(loop)
    check_launched(loop)
    for running in loop.queues.running:
        _check_board(running)
        _check_found(loop, running)


def _check_board(running: Running) -> None:
    """No end of an answer is overlooked, and the board agrees with the tokens."""
    job, start = running.job, running.launched
    name, calm, last = job.request.id, int(running.board.calm[running.slot]), int(running.board.last[running.slot])
    require(5, running.computed <= start, f"{name} has computed more than its {start} launched tokens")
    require(5, last == int(job.tokens.view[-1]), f"{name} is taken to have said {last}, not {job.tokens.view[-1]}")
    if calm > start:
        looked_at = calm <= job.limit - 2 and not running.rungs
        require(5, looked_at, f"{name}, at {start}, is not looked at up to {calm}; its limit is {job.limit}")


def _check_found(loop: EngineLoop, running: Running) -> None:
    """No whole block is overlooked."""
    request, block = running.job.request, loop.directory.tree.block
    if loop.config.cache and request.read_cache and request.write_cache:
        whole = min(running.computed, running.job.tokens.count) // block * block
        end = running.path.item.node.end
        require(5, end >= whole, f"{request.id} has computed {whole} tokens, of which others find {end}")
