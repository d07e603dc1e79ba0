"""Anthropic's Messages API, on top of chats.

This package knows how that API writes a conversation and an answer. It does not know how either is served: a call becomes the chat that
it amounts to, and the items of the chat's answer become blocks.
"""
