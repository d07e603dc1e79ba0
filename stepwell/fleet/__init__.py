"""Which of several engines a prompt goes to.

This package knows replicas by name, what each expects of a prompt, sessions, and how full each replica is. It does not know sockets,
HTTP, Ray, tensors or the time: whoever routes asks the replicas, and says what time it is. The simulator routes with the same code.

    router   the choice, and what it remembers of sessions
"""
