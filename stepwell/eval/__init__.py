"""`stepwell eval`: are answers that come through the cache as right as those that are computed anew?

It asks GSM8K twice, tells which tier served the second pass, and tampers with the cache on purpose to show that it would notice. It
knows an engine in its own process, or any server of the OpenAI API by its URL. It does not know how a cache decides.
"""
