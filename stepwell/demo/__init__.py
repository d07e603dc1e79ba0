"""One minute with Stepwell: agent conversations that outgrow the device, on a small model, without a GPU.

This package knows the command line and the HTTP interface of the server. It does not know the engine: what it shows,
any OpenAI client can measure.
"""
