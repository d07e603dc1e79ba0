"""Answers within a grammar: which tokens may come next, worked out by processes beside the engine.

    Grammars   what has been read      ──┐ Read, Next                     ┌── process.py   parsers, vocabulary: llguidance
    Guides     what may follow answers ──┴────────────▶ GrammarProcess ───┤
    FairPool   whose turn it is          ◀──────────── Told, Lost         └── one for quick grammars, one for dear ones

llguidance keeps the interpreter's lock for most of the time that a mask takes, and nothing can interrupt it. A process has a lock
of its own, and can be ended.
"""
