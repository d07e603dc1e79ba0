"""What the server tells of its work: metrics, the log, traces, and the numbers that the page shows.

Nothing here decides anything, and no answer depends on it.
"""
