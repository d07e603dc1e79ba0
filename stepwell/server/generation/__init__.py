"""From a prompt to the text of its answers: requests go to the engine, events come back sorted by caller.

`generate.py` runs one call and `client.py` speaks with the engine. While the engine is idle, `look_ahead.py` computes what the next turn
will need.
"""
