"""Bulk work: files of calls that are answered while no other call waits, across restarts.

This package knows files, batches and whose they are; it answers a line by the handler of its route and knows nothing of generation.
"""
