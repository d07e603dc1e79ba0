"""From the pieces of an answer to what a caller gets: one form for each API, whole or in a stream.

This package knows how APIs send answers. It does not know how a model writes: that is in `stepwell.server.parse`.
"""
