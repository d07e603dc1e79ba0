"""From the bytes of a request to a checked call: what it may say, how tokens are chosen, which tools and which grammar it brings.

This package knows fields and their bounds. It does not know how a conversation becomes tokens: that is in `stepwell.server.prompt`.
"""
