"""What every call has in common, whatever it asks: the application, connections, keys, errors, streams.

This package knows HTTP. It does not know what a call may say: that is in `stepwell.server.read`.
"""
