"""Tokenizers whose templates know tools and thoughts. The scripted engine repeats its prompt, which here begins with the first
message: whatever that says is the answer."""

from __future__ import annotations

import json
from pathlib import Path

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.testing.tokenizer import train_tokenizer, write_tokenizer

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- message.content -}}"
    "{%- if message.reasoning_content -%}{{- '[' + message.reasoning_content + ']' -}}{%- endif -%}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{- '(' + call.function.name + (call.function.arguments | tojson) + ')' -}}"
    "{%- endfor -%}"
    "{{- '<|im_end|>' + message.role -}}"
    "{%- endfor -%}"
    "{%- if tools -%}{{- tools | tojson -}}{%- endif -%}"
    "{%- if add_generation_prompt -%}{{- '<think>\\n' if thinking else '<think></think>' -}}{%- endif -%}"
)
_TAGGED = "{#- calls look like <function=name> -#}"


def talking_tokenizer(path: Path, vocab: int = 290, tagged: bool = False, template: str = _TEMPLATE) -> Tokenizer:
    """A tokenizer of `vocab` entries and one for each of the marks; writes `<function=…>` calls if `tagged`."""
    from tokenizers import AddedToken

    tokenizer = train_tokenizer(vocab)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    write_tokenizer(path, tokenizer, 4096)
    config = json.loads((path / "tokenizer_config.json").read_text())
    config["chat_template"] = (_TAGGED if tagged else "") + template
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(str(path))


def word_tokenizer(path: Path, vocab: int = 320) -> None:
    """Write a tokenizer in which every id is a word of its own: a kind of vocabulary that llguidance cannot read."""
    from tokenizers import Tokenizer as Words
    from tokenizers import models, pre_tokenizers

    words = Words(models.WordLevel({f"w{i}": i for i in range(vocab)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w2", "unk_token": "w0"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
