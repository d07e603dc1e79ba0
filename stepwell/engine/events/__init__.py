"""What the cache holds, told to whoever subscribes: routers that send a prompt to where it is cached.

This package knows the form of vLLM's KV events and sockets. It does not know how anything is cached.
"""
