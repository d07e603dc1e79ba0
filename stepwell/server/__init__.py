"""The HTTP server, room by room in the order in which a call passes: `http`, `routes`, `read`, `prompt`, `generation`, `parse`, `write`.

`messages`, `responses` and `batches` are APIs of their own on top of chats. `observe` shows what happened. `commands` starts a server or
calls one. `pages` holds the files of its web page. This package knows HTTP, APIs and text. It does not know tensors, or what is cached.
"""
