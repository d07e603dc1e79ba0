"""OpenAI's Responses API, on top of chats.

This package knows how that API writes a conversation, an answer and its events, and keeps answers that a later call may refer to. It does
not know how an answer is made: a call becomes the chat that it amounts to.
"""
