"""`stepwell chat`: a conversation in the terminal, with any server of the OpenAI API or with an engine in this process.

This package knows what was said, how an answer is drawn as it comes, and what the user types. It meets servers over HTTP alone and
needs no PyTorch for that.

    talkers        whoever answers                  screen     an answer as it appears
    conversation   what was said, and its branches  keyboard   a line from the user     session   the commands
"""
