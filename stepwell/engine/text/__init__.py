"""Text to tokens, and tokens to the text that a caller sees."""
