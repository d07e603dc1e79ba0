"""From a `Step` to tensors, from a `Move` to copies; the process around them. Decides nothing.

    build ▸ owned       control: directory and loop, put together      events     what the cache holds, told to subscribers
    wire                steps and moves as bytes                       grammar    which tokens may come next, in processes beside it
    worker ▸ compute    the model, its memory, a step computed         ranks      several workers, one a process
    process             the engine behind a front end's sockets        text       tokenizer and detokenizer
    llm                 the engine without a server

This package knows models, arenas, processes and messages. It does not know HTTP, and it has no opinion on what to cache.
"""

from __future__ import annotations

import os

# Before torch loads its OpenMP: worker threads that spin at barriers turn a forward pass of 0.3 s into one of 30 s as soon as
# another process (a front end, say) wants the same cores. A user's own setting stands.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
