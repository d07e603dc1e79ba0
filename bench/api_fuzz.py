"""Requests made up from the server's own API document, right and wrong ones: no answer may be a server error.

    python bench/api_fuzz.py --schemathesis /path/to/bin/schemathesis --requests 10000 [--model DIR]

Serves a very small checkpoint (or MODEL) with a short context and lets schemathesis, which is installed apart from this
package, call it. Ends with one line of JSON: {"requests", "server_errors", "alive_after", "streams_left"}.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from stepwell.base.children import command

_CONTEXT = 128
_SHARE = 1.3  # of the examples that are asked for: some routes have few fields, and give fewer
_START_SECONDS = 180
_LOG_SHOWN = 50_000  # characters of the server's log, where it had errors


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schemathesis", default="schemathesis", help="its command")
    parser.add_argument("--requests", type=int, default=10_000, help="about how many requests to make up")
    parser.add_argument("--model", help="a checkpoint to serve instead of a small one made for this")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or _checkpoint(Path(scratch) / "model")
        with _served(model, Path(scratch) / "log") as url:
            asked, errors = _fuzz(args.schemathesis, url, args.requests, args.seed, Path(scratch))
            alive = _answers(url)
            left = _sum(url, "stepwell_queue_requests")
            # the caller's report leaves out what it could not repeat; the server's own count does not
            errors = max(errors, _sum(url, "stepwell_http_errors_total", status="5"))
        if errors:
            print((Path(scratch) / "log").read_text()[-_LOG_SHOWN:], file=sys.stderr)
    print(json.dumps({"requests": asked, "server_errors": errors, "alive_after": alive, "streams_left": left}))
    return 0 if errors == 0 and alive and left == 0 else 1


def _checkpoint(path: Path) -> str:
    from stepwell.testing.checkpoint import write_checkpoint

    write_checkpoint(path, hidden=64, layers=4, vocab=512, max_positions=_CONTEXT)
    config = json.loads((path / "tokenizer_config.json").read_text())
    config["chat_template"] += (
        "{%- if tools -%}{{- tools | length -}}{%- endif -%}"  # or every call with tools is refused
    )
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return str(path)


@contextlib.contextmanager
def _served(model: str, log: Path) -> Iterator[str]:
    """A server on a free port until the block ends."""
    words = ["serve", model, "--served-model-name", "tiny", "--port", "0", "--device", "cpu"]
    words += ["--device-memory", "16MiB", "--host-memory", "4MiB", "--max-model-len", str(_CONTEXT)]
    with log.open("w") as out:
        server = subprocess.Popen(command("stepwell", *words), stdout=out, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while (found := re.search(r"on (http://\S+)", log.read_text())) is None:
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.2)
        yield found[1]
    finally:
        server.terminate()
        server.wait(30)


def _fuzz(command: str, url: str, requests: int, seed: int, scratch: Path) -> tuple[int, int]:
    """Requests made, and answers of 500 and above, as the report lists them."""
    report = scratch / "report.ndjson"
    words = [command, "run", f"{url}/openapi.json", "--checks", "not_a_server_error", "--phases", "coverage,fuzzing"]
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=30) as response:
        operations = sum(len(path) for path in json.load(response)["paths"].values())
    words += [
        "--max-examples",
        str(max(1, round(_SHARE * requests / operations))),
        "--workers",
        "4",
        "--seed",
        str(seed),
    ]
    words += ["--continue-on-failure", "--request-timeout", "120", "--suppress-health-check", "all", "--no-color"]
    words += ["--report", "ndjson", "--report-ndjson-path", str(report)]
    subprocess.run(words, check=False, cwd=scratch)
    codes = [int(code) for code in re.findall(r'"status_code":\s*(\d+)', report.read_text())]
    return len(codes), sum(code >= 500 for code in codes)


def _answers(url: str) -> bool:
    """Whether the server still generates."""
    body = json.dumps({"prompt": "once", "max_tokens": 2}).encode()
    with urllib.request.urlopen(f"{url}/v1/completions", body, timeout=120) as response:
        return bool(json.load(response)["usage"]["completion_tokens"] >= 1)


def _sum(url: str, name: str, status: str = "") -> int:
    """The sum of a metric over its labels; of those whose status begins with `status`."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return int(sum(s.value for s in samples if s.labels.get("status", "").startswith(status)))


if __name__ == "__main__":
    sys.exit(main())
