"""Load over HTTP for a server of any make: prompts of ids, streamed, greedy, answers of a given length."""
