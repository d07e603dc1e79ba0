"""What callers say to a model, in any of three APIs, as the one conversation that a chat template renders.

This package knows messages, blocks and items as callers write them, and what templates refuse. It does not know HTTP, tokens or engines.

    messages of Anthropic's API ─┐
    items of the Responses API  ─┼─▶ messages of a chat ─▶ `conversation` ─▶ what a template takes
    messages of a chat          ─┘
"""
