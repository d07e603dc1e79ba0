"""Coding agents played against a server whose answers follow a script."""
