"""What holds for the repository as a whole: imports, sizes, forbidden calls, and documents that speak of what is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import typer.main

from stepwell.later import LaterCommand

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "stepwell").rglob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

LONGEST_FILE = 400
LONGEST_FUNCTION = 60
# Files and functions that are allowed to be longer, each with its reason.
LONG_ON_PURPOSE: frozenset[str] = frozenset()

# Flags of other programs, or of what has been taken out, that the documents may name.
FOREIGN_FLAGS = frozenset(
    {
        "--input",
        "--apply",
        "--auto",
        "--benchmark-duration",
        "--concurrency",
        "--custom-dataset-type",
        "--endpoint-type",
        "--extra-inputs",
        "--include",
        "--index-url",
        "--input-file",
        "--isl",
        "--max-positions",
        "--no-deps",
        "--osl",
        "--output-format",
        "--request-count",
        "--resume",
        "--scenario",
        "--seeds",
        "--streaming",
        "--tasks",
        "--think-prefetch",
        "--ui",
        "--unsafe-override",
        "--use-server-token-count",
    }
)

SILENT_CACHE = {
    "logging",
    "time",
    "threading",
    "random",
    "os",
    "asyncio",
    "socket",
    "concurrent",
    "multiprocessing",
    "datetime",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(tree: ast.AST) -> Iterator[str]:
    """First words of the modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def forbidden_calls(tree: ast.AST) -> Iterator[str]:
    """Calls that could run what a file or a user says."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in {"eval", "exec", "torch.load", "__import__"}:
            yield f"{name} at line {node.lineno}"
        if any(word.arg == "allow_pickle" for word in node.keywords):
            yield f"allow_pickle at line {node.lineno}"


def declared() -> set[str]:
    """Import names of the packages in pyproject.toml."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project, builders = told["project"], told["build-system"]["requires"]
    extras = project["optional-dependencies"].values()
    wanted = [*builders, *project["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.split(r"[^\w-]", requirement)[0].replace("-", "_") for requirement in wanted}
    other = {
        "markdown_it_py": "markdown_it",
        "python_multipart": "multipart",
        "pyzmq": "zmq",
        "opentelemetry_sdk": "opentelemetry",
    }
    return names | {other[name] for name in names & other.keys()}


def reads_environment(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.getenv"} for node in ast.walk(tree)
    )


def test_cache_sched_and_replay_import_without_the_engine() -> None:
    program = """
import importlib, pkgutil, sys
for name in ("torch", "transformers", "safetensors", "fastapi", "zmq", "msgspec"):
    sys.modules[name] = None
for package in ("base", "cache", "sched", "replay"):
    found = importlib.import_module(f"stepwell.{package}")
    for module in pkgutil.walk_packages(found.__path__, found.__name__ + "."):
        importlib.import_module(module.name)
import stepwell.testing
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_sources_run_nothing_they_were_given() -> None:
    found = {}
    for path in SOURCES:
        tree = ast.parse(path.read_text("utf-8"))
        readers = {"pickle", "dill", "cloudpickle", "marshal", "shelve"} & set(imported(tree))
        found[name_of(path)] = [*sorted(readers), *forbidden_calls(tree)]
    assert not {name: faults for name, faults in found.items() if faults}


def too_long(path: Path) -> Iterator[str]:
    """The file, if it is longer than files may be, and each of its functions that is."""
    text = path.read_text("utf-8")
    if text.count("\n") > LONGEST_FILE:
        yield name_of(path)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield f"{name_of(path)}:{node.name}"


def test_sources_stay_small() -> None:
    assert {name for path in SOURCES for name in too_long(path)} == LONG_ON_PURPOSE


def test_every_imported_package_is_declared() -> None:
    shared = declared() | set(sys.stdlib_module_names) | {"stepwell", "tests", "tiny", "tools"}
    shared |= {"starlette", "mypyc", "setup"}  # a part of FastAPI, of mypy, and the script at the root
    missing = {}
    for folder in ("stepwell", "tests", "bench", "tools", "tiny"):
        known = shared | {path.stem for path in (ROOT / folder).iterdir()}  # scripts find what stands beside them
        for path in (ROOT / folder).rglob("*.py"):
            missing[name_of(path)] = set(imported(ast.parse(path.read_text("utf-8")))) - known
    assert not {name: names for name, names in missing.items() if names}


def test_cache_has_no_clock_no_threads_and_no_log_of_its_own() -> None:
    found = {
        name_of(path): SILENT_CACHE & set(imported(ast.parse(path.read_text("utf-8"))))
        for path in SOURCES
        if path.is_relative_to(ROOT / "stepwell" / "cache")
    }
    assert found
    assert not {path: names for path, names in found.items() if names}


def test_environment_is_read_by_the_command_line_alone() -> None:
    readers = {name_of(path) for path in SOURCES if reads_environment(ast.parse(path.read_text("utf-8")))}
    # One sets a default for OpenMP, the other passes the environment on to processes of its own.
    assert readers <= {"stepwell/cli.py", "stepwell/engine/__init__.py", "stepwell/base/children.py"}


def heading_anchors(path: Path) -> set[str]:
    """Anchors that a renderer gives to the headings of a Markdown file."""
    titles = re.findall(r"^#+\s+(.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def links(path: Path) -> Iterator[str]:
    """Targets of the relative links and images in a Markdown file."""
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", text):
        link = target[0] or target[1]
        if not re.match(r"[a-z]+:", link):
            yield link


def broken_links(path: Path) -> Iterator[str]:
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in heading_anchors(target)):
            yield f"{name_of(path)} links to {link}"


def test_links_of_documents_resolve() -> None:
    assert not [fault for path in DOCUMENTS for fault in broken_links(path)]


def known_flags() -> set[str]:
    """Every flag of every `stepwell` command, and those of other engines that it reads."""
    app = importlib.import_module("stepwell.cli").app

    flags = {"--help"}
    waiting = [typer.main.get_command(app)]
    while waiting:
        command = waiting.pop()
        command = command.real() if isinstance(command, LaterCommand) else command
        for param in command.params:
            flags.update(param.opts, param.secondary_opts)
        waiting.extend(getattr(command, "commands", {}).values())
    return flags | {
        name for row in importlib.import_module("stepwell.server.commands.peer_flags").FLAGS for name in row.names
    }


def scripts_flags() -> set[str]:
    """Every flag that a script of the repository takes, as its parser names it."""
    texts = [
        path.read_text("utf-8")
        for folder in ("bench", "tools", "tiny", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return {
        flag for text in texts for flag in re.findall(r"add_?(?:argument|option)\(\s*\"(--[a-z][a-z0-9-]*)\"", text)
    }


def test_flags_of_documents_exist() -> None:
    known = known_flags() | scripts_flags() | FOREIGN_FLAGS
    named = {
        (name_of(path), flag)
        for path in DOCUMENTS
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", path.read_text("utf-8"))
    }
    assert not {pair for pair in named if pair[1] not in known}
    assert {flag for _, flag in named} >= FOREIGN_FLAGS, "a flag that no document names any more"


def test_source_files_named_in_documents_exist() -> None:
    named = {
        (name_of(path), file)
        for path in DOCUMENTS
        for file in re.findall(r"`((?:stepwell|tests|bench|docs|tiny|tools)/[\w./-]+)`", path.read_text("utf-8"))
    }
    assert named
    assert not {pair for pair in named if not (ROOT / pair[1]).exists()}


def test_ci_script_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_code_lines_leave_out_prose_and_blank_lines(tmp_path: Path) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "one.py").write_text(
        '"""Prose.\n\nMore."""\n\n# why\nx = """a\nb"""\n\n\ndef f():\n    """Says."""\n    return x\n'
    )
    script = [sys.executable, str(ROOT / "tools" / "lines.py"), str(package)]
    report = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert "4  (top)" in report
    assert "f" in report.splitlines()[-1]


def taken(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of the project that a file imports from, each with a name that it takes."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "stepwell":
            yield from ((node.module, name.name) for name in node.names)


def test_benches_import_what_there_is() -> None:
    benches = [path for folder in ("bench", "tools") for path in (ROOT / folder).rglob("*.py")]
    names = {pair for path in benches for pair in taken(path)}
    assert names
    for module, name in sorted(names):
        whole = importlib.import_module(module)
        inner = hasattr(whole, "__path__") and importlib.util.find_spec(f"{module}.{name}")
        assert inner or hasattr(whole, name), f"{module} has no {name}"
