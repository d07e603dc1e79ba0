"""Commands that start a server, check a machine for one, or call one; with their settings and flags.

`serve.py` starts one, `serve_settings.py` declares every setting of it once, `options.py` checks them.
"""
