"""From a checked call to the tokens of its prompt: the chat template, and where conversations tend to part.

Templates run in processes of their own; whatever else is long runs in threads.
This package knows templates and the tokenizer. It does not know what the cache holds.
"""
