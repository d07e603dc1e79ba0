"""A checkpoint's tokenizer and chat template with the traits of the models that coding agents use, in words of its own.

A system message that is not the first raises, and so does a conversation without a user message. Tools come before the system
text. Thoughts of answers before the last real user message are dropped, unless `preserve_thinking` is true; a user message that
is wholly a tool's response does not count as one. With `enable_thinking` false the prompt ends in an empty thought. Results of
tools that follow each other share one turn and are told apart by their places alone. Arguments of calls are written as
parameters: text as it is, anything else as JSON. Content is trimmed.
"""

from __future__ import annotations

import json
from pathlib import Path

from stepwell.testing.tokenizer import train_tokenizer, write_tokenizer

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Texts that are one token each, and no special ones."""

TEMPLATE = """
{%- macro text(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- elif content is not none -%}
    {%- for part in content -%}
      {%- if part is string -%}{{- part -}}
      {%- elif part.text is defined -%}{{- part.text -}}
      {%- else -%}{{- raise_exception('this model reads text alone') -}}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- if not messages -%}{{- raise_exception('there are no messages') -}}{%- endif -%}
{%- set first = messages[0] -%}
{%- if tools -%}
  {{- '<|im_start|>system\\n# Tools\\n\\nThese functions can be called:\\n<tools>' -}}
  {%- for tool in tools -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}
  {{- '\\n</tools>\\n\\nA call is written like this, with nothing behind it:\\n\\n<tool_call>\\n<function=name>\\n' -}}
  {{- '<parameter=one>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>' -}}
  {%- if first.role == 'system' and text(first.content) | trim -%}
    {{- '\\n\\n' ~ (text(first.content) | trim) -}}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- elif first.role == 'system' -%}
  {{- '<|im_start|>system\\n' ~ (text(first.content) | trim) ~ '<|im_end|>\\n' -}}
{%- endif -%}
{%- set turn = namespace(last=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {%- set said = text(message.content) | trim -%}
    {%- if not (said.startswith('<tool_response>') and said.endswith('</tool_response>')) -%}
      {%- set turn.last = loop.index0 -%}
    {%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if turn.last < 0 -%}{{- raise_exception('no message of a user') -}}{%- endif -%}
{%- for message in messages -%}
  {%- set content = text(message.content) | trim -%}
  {%- if message.role == 'system' -%}
    {%- if not loop.first -%}{{- raise_exception('a system message must be the first') -}}{%- endif -%}
  {%- elif message.role == 'user' -%}
    {{- '<|im_start|>user\\n' ~ content ~ '<|im_end|>\\n' -}}
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if loop.index0 > turn.last or (preserve_thinking is defined and preserve_thinking) -%}
      {{- '<think>\\n' ~ ((message.reasoning_content or '') | trim) ~ '\\n</think>\\n\\n' -}}
    {%- endif -%}
    {{- content -}}
    {%- for call in message.tool_calls or [] -%}
      {{- '\\n\\n' if loop.first and content else ('' if loop.first else '\\n') -}}
      {{- '<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' -}}
      {%- for name, value in call.function.arguments | items -%}
        {{- '<parameter=' ~ name ~ '>\\n' ~ (value if value is string else value | tojson) ~ '\\n</parameter>\\n' -}}
      {%- endfor -%}
      {{- '</function>\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- elif message.role == 'tool' -%}
    {{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' -}}
    {{- '\\n<tool_response>\\n' ~ content ~ '\\n</tool_response>' -}}
    {{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' -}}
  {%- else -%}
    {{- raise_exception('there is no role ' ~ message.role) -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n<think>\\n' -}}
  {%- if enable_thinking is defined and not enable_thinking -%}{{- '\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
"""


def forgetful(template: str) -> str:
    """The same without `preserve_thinking`: the thoughts of a turn are lost with the next one, whatever is asked for."""
    return template.replace(" or (preserve_thinking is defined and preserve_thinking)", "")


def thoughtless(template: str) -> str:
    """The same for a model that never thinks: every prompt ends in an empty thought, whatever is asked for."""
    return template.replace("if enable_thinking is defined and not enable_thinking", "if true")


def write_agent_tokenizer(
    path: Path, vocab: int = 2048, max_positions: int = 262_144, template: str = TEMPLATE
) -> Path:
    """Write tokenizer.json and tokenizer_config.json of `vocab` tokens, the marks among them, into the directory `path`."""
    from tokenizers import AddedToken

    tokenizer = train_tokenizer(vocab - len(MARKS))
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    write_tokenizer(path, tokenizer, max_positions)
    file = path / "tokenizer_config.json"
    config = json.loads(file.read_text("utf-8")) | {"chat_template": template}
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return path
