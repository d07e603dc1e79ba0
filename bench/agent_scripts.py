"""What each real program is told to do, and what the model says to it."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from recorder import Answer, Script

_LONG = "a line of a large file that says very little about anything at all\n" * 400


class Program(Protocol):
    """One program: its turns as command lines, and its answers by kind of call."""

    context: int

    def prepare(self, work: Path, home: Path, url: str) -> None: ...

    def environment(self, url: str, home: Path) -> dict[str, str]: ...

    def turns(self, programs: Path, work: Path) -> list[list[str]]: ...

    def script(self) -> Script: ...


def _picture(side: int = 8) -> bytes:
    """A red square as PNG."""
    rows = zlib.compress(b"".join(b"\0" + b"\xff\x20\x20" * side for _ in range(side)))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _fill(work: Path) -> None:
    (work / "hello.txt").write_text("hello there\n")
    (work / "big.txt").write_text(_LONG)
    (work / "dot.png").write_bytes(_picture())


def _spoken(
    plans: Mapping[str, Sequence[Answer]], kind: Callable[[str, dict[str, Any], dict[str, str]], str]
) -> Script:
    """The answers of each kind in their order, then a plain end."""
    waiting: dict[str, Iterator[Answer]] = {name: iter(answers) for name, answers in plans.items()}

    def say(path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[str, Answer]:
        found = kind(path, body, headers)
        return found, next(waiting.get(found, iter(())), Answer("That is all there is to say."))

    return say


def _sub(shell: str) -> list[Answer]:
    """What a sub-agent says, whose shell has this name."""
    listing = (shell, {"command": "ls", "description": "list files"})
    return [Answer("I look.", calls=(listing,)), Answer("There are three files.")]


def _last_text(messages: Sequence[Any]) -> str:
    """All text of the last message."""
    return json.dumps(messages[-1]) if messages else ""


@dataclass(frozen=True, slots=True)
class ClaudeCode:
    context: int = 70_000

    def prepare(self, work: Path, home: Path, url: str) -> None:
        _fill(work)

    def environment(self, url: str, home: Path) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-made-up",
            "ANTHROPIC_MODEL": "q35",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "q35-small",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "CLAUDE_CONFIG_DIR": str(home / "claude"),
        }

    def turns(self, programs: Path, work: Path) -> list[list[str]]:
        program = str(programs / "node_modules/@anthropic-ai/claude-code-linux-x64/claude")
        tools = ["--allowedTools", "Bash", "Read", "Write", "Agent", "--output-format", "stream-json", "--verbose"]
        return [
            [program, "-p", "look around, write a file and look at the picture", *tools],
            [program, "-c", "-p", "now run what you have written", *tools],
            [program, "-c", "-p", "read the large file until you know it by heart", *tools],
        ]

    def script(self) -> Script:
        main = [
            Answer("I look around.", calls=(("Bash", {"command": "ls", "description": "list files"}),)),
            Answer(
                "I write it.",
                calls=(
                    ("Write", {"file_path": "hello.py", "content": "print('1.10')\n# True\nprint(None)\n"}),
                    ("Bash", {"command": "cat hello.txt", "description": "read a file"}),
                ),
            ),
            Answer("Now the picture.", calls=(("Read", {"file_path": "dot.png"}),)),
            Answer(
                "I ask for help.",
                calls=(("Agent", {"description": "look", "prompt": "list the files", "subagent_type": "Explore"}),),
            ),
            Answer("It is written, and I have seen a picture."),
            Answer("I run it.", calls=(("Bash", {"command": "python3 hello.py", "description": "run it"}),)),
            Answer("It says 1.10 and None."),
            *[Answer("Again.", calls=(("Bash", {"command": "cat big.txt", "description": "read"}),))] * 4,
            Answer("I know it by heart."),
        ]
        compact = [Answer("<summary>\nA file was written and run; a large one was read.\n</summary>")]
        return _spoken({"main": main, "sub-agent": _sub("Bash"), "compaction": compact}, self._kind)

    def _kind(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
        if "x-claude-code-agent-id" in headers:
            return "sub-agent"
        if "summary" in _last_text(body["messages"]) and "TEXT ONLY" in _last_text(body["messages"]):
            return "compaction"
        return "main" if body.get("tools") else "other"


@dataclass(frozen=True, slots=True)
class Codex:
    context: int = 60_000

    def prepare(self, work: Path, home: Path, url: str) -> None:
        _fill(work)
        (home / "codex").mkdir()
        (home / "codex/config.toml").write_text(
            'model = "q35"\nmodel_provider = "well"\ncheck_for_update_on_startup = false\n'
            "model_context_window = 60000\nmodel_auto_compact_token_limit = 27000\n"
            '[model_providers.well]\nname = "well"\nwire_api = "responses"\n'
            f'base_url = "{url}/v1"\nenv_key = "WELL_KEY"\n[analytics]\nenabled = false\n'
        )

    def environment(self, url: str, home: Path) -> dict[str, str]:
        return {"WELL_KEY": "sk-made-up", "CODEX_HOME": str(home / "codex")}

    def turns(self, programs: Path, work: Path) -> list[list[str]]:
        program = str(next((programs / "node_modules/@openai/codex-linux-x64/vendor").rglob("bin/codex")))
        start = [program, "exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
        return [
            [*start, "look around, write a file and look at the picture"],
            [*start, "resume", "--last", "now run what you have written"],
            [*start, "resume", "--last", "read the large file until you know it by heart"],
        ]

    def script(self) -> Script:
        main = [
            Answer("I look around.", calls=(("exec_command", {"cmd": "ls"}),)),
            Answer("I read.", calls=(("exec_command", {"cmd": "cat hello.txt"}), ("exec_command", {"cmd": "ls -l"}))),
            Answer("Now the picture.", calls=(("view_image", {"path": "dot.png"}),)),
            Answer("It is written."),
            Answer("I run it.", calls=(("exec_command", {"cmd": "cat hello.txt"}),)),
            Answer("It says so."),
            Answer("I ask for help.", calls=(("multi_agent_v1__spawn_agent", {"message": "list the files"}),)),
            *[Answer("Again.", calls=(("exec_command", {"cmd": "cat big.txt", "max_output_tokens": 9000}),))] * 4,
            Answer("I know it by heart."),
        ]
        sub = [Answer("I look.", calls=(("exec_command", {"cmd": "ls"}),)), Answer("There are three files.")]
        return _spoken({"main": main, "sub-agent": sub}, self._kind)

    def _kind(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
        if "x-openai-subagent" in headers:
            return "sub-agent"
        return "compaction" if "CONTEXT CHECKPOINT" in _last_text(body["input"]) else "main"


@dataclass(frozen=True, slots=True)
class OpenCode:
    context: int = 48_000

    def prepare(self, work: Path, home: Path, url: str) -> None:
        _fill(work)
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "sk-made-up"},
            "models": {
                name: {"name": name, "limit": {"context": 200_000, "output": 8192}} for name in ("q35", "q35-small")
            },
        }
        settings = {"provider": {"well": provider}, "model": "well/q35", "small_model": "well/q35-small"}
        settings |= {"autoupdate": False, "share": "disabled"}
        (work / "opencode.json").write_text(json.dumps(settings))

    def environment(self, url: str, home: Path) -> dict[str, str]:
        return {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "XDG_DATA_HOME": str(home / "data"),
        }

    def turns(self, programs: Path, work: Path) -> list[list[str]]:
        program = str(programs / "node_modules/opencode-linux-x64/bin/opencode")
        return [
            [program, "run", "-m", "well/q35", "look around, write a file and look at the picture"],
            [program, "run", "-m", "well/q35", "-c", "now run what you have written"],
            [program, "run", "-m", "well/q35", "-c", "read the large file until you know it by heart"],
        ]

    def script(self) -> Script:
        main = [
            Answer("I look around.", calls=(("bash", {"command": "ls", "description": "list files"}),)),
            Answer("I write it.", calls=(("write", {"filePath": "hello.py", "content": "print('1.10')\n# True\n"}),)),
            Answer("Now the picture.", calls=(("read", {"filePath": "dot.png"}),)),
            Answer(
                "I ask for help.",
                calls=(("task", {"description": "look", "prompt": "list the files", "subagent_type": "general"}),),
            ),
            Answer("It is written."),
            Answer("I run it.", calls=(("bash", {"command": "python3 hello.py", "description": "run it"}),)),
            Answer("It says 1.10."),
            *[Answer("Again.", calls=(("bash", {"command": "cat big.txt", "description": "read"}),))] * 5,
            Answer("I know it by heart."),
        ]
        return _spoken({"main": main, "sub-agent": _sub("bash")}, self._kind)

    def _kind(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
        if "x-parent-session-id" in headers:
            return "sub-agent"
        if "summarization" in json.dumps(body["messages"][:1]):
            return "compaction"
        return "main" if body.get("tools") else "title"


@dataclass(frozen=True, slots=True)
class Aider:
    context: int = 60_000

    def prepare(self, work: Path, home: Path, url: str) -> None:
        _fill(work)

    def environment(self, url: str, home: Path) -> dict[str, str]:
        return {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "sk-made-up", "AIDER_ANALYTICS_DISABLE": "true"}

    def turns(self, programs: Path, work: Path) -> list[list[str]]:
        start = [
            str(programs / "aider/bin/aider"),
            "--model",
            "openai/q35",
            "--no-git",
            "--yes-always",
            "--no-check-update",
        ]
        start += ["--no-show-model-warnings", "--no-analytics", "--restore-chat-history", "hello.txt", "--message"]
        return [[*start, "say what the file says"], [*start, "say it again"]]

    def script(self) -> Script:
        return _spoken({"main": [Answer("It says hello there."), Answer("It still does.")]}, lambda *call: "main")


@dataclass(frozen=True, slots=True)
class Cline:
    context: int = 22_000

    def prepare(self, work: Path, home: Path, url: str) -> None:
        _fill(work)

    def environment(self, url: str, home: Path) -> dict[str, str]:
        return {"WELL_URL": f"{url}/v1"}

    def turns(self, programs: Path, work: Path) -> list[list[str]]:
        """The first one says where the server is. Each of the others is a session of its own: one can be resumed in the terminal alone."""
        program = str(programs / "node_modules/.bin/cline")
        data = ["--data-dir", str(work.parent / "home/cline")]
        auth = 'exec "$0" auth openai --apikey none --modelid q35 --baseurl "$WELL_URL" "$@"'
        said = ["look around, write a file and look at the picture", "now run what you have written"]
        said.append("read the large file until you know it by heart")
        return [["sh", "-c", auth, program, *data], *([program, *data, "--json", text] for text in said)]

    def script(self) -> Script:
        main = [
            Answer("I look around.", calls=(("run_commands", {"commands": ["ls"]}),)),
            Answer(
                "I write it.",
                calls=(
                    ("editor", {"path": "hello.py", "new_text": "print('1.10')\n# True\nprint(None)\n"}),
                    ("run_commands", {"commands": ["cat hello.txt"]}),
                ),
            ),
            Answer("Now the picture.", calls=(("read_files", {"files": [{"path": "dot.png"}]}),)),
            Answer(
                "I ask.", calls=(("spawn_agent", {"systemPrompt": "You look at files.", "task": "list the files"}),)
            ),
            Answer("It is written."),
            Answer("I run it.", calls=(("run_commands", {"commands": ["python3 hello.py"]}),)),
            Answer("It says 1.10."),
            *[Answer("Again.", calls=(("run_commands", {"commands": [f"cat big.txt; echo {i}"]}),)) for i in range(6)],
            Answer("I know it by heart."),
        ]
        sub = [Answer("I look.", calls=(("run_commands", {"commands": ["ls"]}),)), Answer("There are three files.")]
        return _spoken({"main": main, "sub-agent": sub}, self._kind)

    def _kind(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
        if "You look at files." in json.dumps(body["messages"][:1]):
            return "sub-agent"
        return "main" if body.get("tools") else "compaction"


@dataclass(frozen=True, slots=True)
class Continue:
    """Its command line. Pictures cannot be read by its tools."""

    context: int = 40_000

    def prepare(self, work: Path, home: Path, url: str) -> None:
        _fill(work)
        (home / ".continue").mkdir()
        (home / ".continue/config.yaml").write_text(
            "name: well\nversion: 0.0.1\nschema: v1\nmodels:\n"
            f"  - {{name: q35, provider: openai, model: q35, apiBase: {url}/v1, apiKey: none, roles: [chat, edit, apply],\n"
            "     defaultCompletionOptions: {contextLength: 16000, maxTokens: 2000}}\n"
        )

    def environment(self, url: str, home: Path) -> dict[str, str]:
        return {"CONTINUE_GLOBAL_DIR": str(home / ".continue"), "CONTINUE_TELEMETRY_ENABLED": "0"}

    def turns(self, programs: Path, work: Path) -> list[list[str]]:
        config = str(work.parent / "home/.continue/config.yaml")
        start = [str(programs / "node_modules/.bin/cn"), "--config", config, "--auto", "-p"]
        return [
            [*start, "look around and write a file"],
            [*start, "--resume", "now run what you have written"],
            [*start, "--resume", "read the large file until you know it by heart"],
        ]

    def script(self) -> Script:
        main = [
            Answer("I look around.", calls=(("List", {"dirpath": "."}),)),
            Answer(
                "I write it.",
                calls=(
                    ("Write", {"filepath": "hello.py", "content": "print('1.10')\n# True\nprint(None)\n"}),
                    ("Bash", {"command": "cat hello.txt"}),
                ),
            ),
            Answer("Now the other.", calls=(("Read", {"filepath": "hello.txt"}),)),
            Answer("It is written."),
            Answer("I run it.", calls=(("Bash", {"command": "python3 hello.py"}),)),
            Answer("It says 1.10."),
            *[Answer("Again.", calls=(("Bash", {"command": f"cat big.txt; echo {i}"}),)) for i in range(6)],
            Answer("I know it by heart."),
        ]
        compact = [Answer(f"A file was written and run, and a large one was read {i} times.") for i in (2, 3, 4)]
        return _spoken({"main": main, "compaction": compact}, self._kind)

    def _kind(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
        if "concise summary of our conversation" in _last_text(body["messages"]):
            return "compaction"
        return "main" if body.get("tools") else "title"


PROGRAMS: dict[str, Program] = {
    "claude-code": ClaudeCode(),
    "codex": Codex(),
    "opencode": OpenCode(),
    "aider": Aider(),
    "cline": Cline(),
    "continue": Continue(),
}
