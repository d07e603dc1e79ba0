"""Which grammar a call asks for, by any of the names that clients have for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepwell.base.errors import RequestError
from stepwell.sched.request import SamplingParams
from stepwell.server.prompt.dialect import Dialect
from stepwell.server.read.grammar import (
    Draft,
    GrammarReader,
    of_calls,
    of_response_format,
    of_structured_outputs,
    schema_of,
)
from stepwell.server.read.schema import ChatCall, CompletionCall
from stepwell.server.read.tools import ToolUse


async def structure(
    call: CompletionCall | ChatCall,
    reader: GrammarReader,
    owner: str,
    use: ToolUse | None = None,
    dialect: Dialect | None = None,
) -> str:
    """The grammar of the answer to a call of `owner`, read by `reader`; "" where it is free.

    Raises RequestError where it is wrong or is asked for twice.
    """
    wanted: list[tuple[str, Callable[[], Draft]]] = []
    if use is not None and dialect is not None and use.forced:
        wanted.append(("tool_choice", lambda: of_calls(use.forced, dialect.form, use.several)))
    asked = call.response_format
    if asked is not None and asked.get("type") != "text":
        if use is not None and dialect is not None and use.allowed and not use.forced:
            wanted.append(
                ("response_format", lambda: of_calls(use.shown, dialect.form, use.several, answer=schema_of(asked)))
            )
        else:
            wanted.append(("response_format", lambda: of_response_format(asked)))
    if outputs := _outputs(call):
        wanted.append(("structured_outputs", lambda: of_structured_outputs(outputs)))
    if not wanted:
        return ""
    if len(wanted) > 1:
        names = " and ".join(name for name, _ in wanted)
        raise RequestError(f"{names} both say what the answer must be: give one", wanted[-1][0])
    return await reader.read(wanted[0][1], owner)


def with_grammar(params: SamplingParams, grammar: str, owner: str, after: int | None = None) -> SamplingParams:
    """`params` with a grammar of `owner`, which alone says when the answer may end; it begins after the token `after`, if one is given."""
    if not grammar:
        return params
    return replace(params, grammar=grammar, grammar_after=after, grammar_for=owner, min_tokens=0, ignore_eos=False)


def _outputs(call: CompletionCall | ChatCall) -> dict[str, object]:
    """`structured_outputs`, and the older fields that say the same."""
    older = {
        "json": call.guided_json,
        "regex": call.guided_regex,
        "choice": call.guided_choice,
        "grammar": call.guided_grammar,
    }
    given = {name: value for name, value in older.items() if value is not None}
    asked = {**(call.structured_outputs or {}), **given}
    return {name: value for name, value in asked.items() if value is not None}
