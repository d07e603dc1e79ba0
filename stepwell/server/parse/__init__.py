"""From what a model writes to what its caller gets: thoughts, text, calls of tools.

Any text is read, in pieces of any size, in time that grows with its length alone. A call that is handed out as finished has arguments that
are strict JSON; every other one is said to be cut. This package knows how models write. It does not know how an API sends what was read.
"""
