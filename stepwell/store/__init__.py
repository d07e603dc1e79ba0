"""Bytes: where they lie and how they are copied.

This package knows slots, pages and checksums. It does not know tokens, requests or what is worth keeping: it copies
what a `Move` names, from where it says to where it says, and reports once.
"""
