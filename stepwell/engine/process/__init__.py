"""The engine in a process of its own: how a front end starts it, and what the two say to each other."""
