"""Launch lines that users of vLLM and SGLang know, for the models that are served here: they start Stepwell."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from stepwell.base.errors import ConfigError
from stepwell.cli import app
from stepwell.server.commands.launch import Launch, read_launch
from stepwell.server.commands.options import ServeOptions, options_from
from stepwell.server.commands.peer_flags import FLAGS, As, Switch

NEXT, BIG = "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3.5-397B-A17B"
DRAFTS = (
    "--speculative-algo NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)

# Of the documents of both projects and of the models' cards; what is set in each, by the fields of our options.
LINES: tuple[tuple[str, dict[str, Any]], ...] = (
    (f"{NEXT} --tensor-parallel-size 1 --served-model-name qwen3-next", {"served_model_name": "qwen3-next"}),
    (
        f"{NEXT} --tokenizer-mode auto --gpu-memory-utilization 0.8 "
        """--speculative-config '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}' """
        "--tensor-parallel-size 1 --no-enable-chunked-prefill",
        {"model": NEXT, "gpu_memory_utilization": 0.8, "num_speculative_tokens": 2},
    ),
    (f"{NEXT} --port 8000 --max-model-len 262144 --tool-call-parser hermes --enable-auto-tool-choice", {}),
    (f"{BIG} --port 8000 --max-model-len 262144 --reasoning-parser qwen3", {"max_model_len": 262144}),
    (
        f"{BIG} --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_coder --language-model-only",
        {"model": BIG},
    ),
    (
        f"{BIG}-FP8 -dp 8 --enable-expert-parallel --language-model-only --reasoning-parser qwen3 --enable-prefix-caching",
        {"enable_prefix_caching": True},
    ),
    (
        f"{BIG} --mm-encoder-tp-mode data --mm-processor-cache-type shm --reasoning-parser deepseek_r1 "
        """--speculative-config '{"method": "mtp", "num_speculative_tokens": 1}' --attention-backend FLASH_ATTN""",
        {"num_speculative_tokens": 1},
    ),
    (
        f"--model {BIG} --trust-remote-code --async-scheduling --no-enable-prefix-caching --max-num-seqs 128 "
        "--max-num-batched-tokens 8192 --compilation_config.cudagraph_mode=FULL_DECODE_ONLY -O3 --seed 7",
        {"model": BIG, "max_num_seqs": 128, "max_num_batched_tokens": 8192, "seed": 7, "enable_prefix_caching": False},
    ),
    (
        f"{BIG} --enable-prompt-tokens-details --max_model_len 4096 --kv-offloading-size 32 --disable-log-requests "
        "--override-generation-config '{\"temperature\": 0.6}' --generation-config vllm",
        {"max_model_len": 4096, "host_memory": 32 << 30},
    ),
    (
        f"--model-path {NEXT} --port 30000 --tp-size 1 --context-length 262144 --mem-fraction-static 0.8 {DRAFTS}",
        {"model": NEXT, "max_model_len": 262144, "gpu_memory_utilization": 0.8},
    ),
    (
        f"--model-path {BIG} --host 0.0.0.0 --tp 1 --mem-fraction-static 0.8 --context-length 262144 "
        "--reasoning-parser qwen3 --tool-call-parser qwen3_coder --mamba-scheduler-strategy extra_buffer --page-size 64",
        {"model": BIG, "max_model_len": 262144},
    ),
    (
        f"--model-path={BIG} --served-model-name qwen --enable-cache-report --enable-metrics --watchdog-timeout 1200 "
        """--model-loader-extra-config '{"enable_multithread_load": true}' --max-running-requests 64 """
        "--chunked-prefill-size 4096 --enable-hierarchical-cache --hicache-size 30 --random-seed 3",
        {"served_model_name": "qwen", "max_num_seqs": 64, "max_num_batched_tokens": 4096, "host_memory": 30 << 30},
    ),
)


def read(line: str, command: str = "serve") -> ServeOptions:
    """The options of a command line behind `stepwell serve`."""
    group: Any = typer.main.get_command(app)
    context = group.commands[command].make_context(command, shlex.split(line))
    return options_from(context.params, frozenset())


@pytest.mark.parametrize(("line", "expected"), LINES, ids=range(len(LINES)))
@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_known_launch_lines_are_read_as_ours(line: str, expected: dict[str, Any], command: str) -> None:
    config = read(line, command).config
    assert {name: getattr(config, name) for name in expected} == expected


def test_a_number_of_ranks_that_cannot_be_is_told_by_our_own_flag() -> None:
    assert read(f"{BIG} --tp-size 8").config.tensor_parallel_size == 8
    with pytest.raises(ConfigError, match="--tensor-parallel-size must be at least 1"):
        read(f"{BIG} --tp-size 0")


OWN = {"--port": 1, "--max-model-len": 1, "--coalesce": 0, "--served-model-name": 1, "--api-key": 1, "--seed": 1}


def test_each_flag_that_changes_nothing_says_so_in_one_line(empty_model: str) -> None:
    launch = read_launch(
        shlex.split("M --enable-torch-compile --swap-space 4 --reasoning-parser qwen3 --cuda-graph-max-bs 4"), OWN
    )
    assert launch.arguments == ("--", "M")
    assert [note.partition(" changes nothing: ")[0] for note in launch.notes] == [
        "--enable-torch-compile",
        "--swap-space 4",
        "--reasoning-parser qwen3",
        "--cuda-graph-max-bs 4",
    ]
    status = CliRunner().invoke(app, ["serve", "--enable-torch-compile", "--port", "-1", empty_model])
    assert "note: --enable-torch-compile changes nothing" in status.output


def test_graphs_are_switched_off_and_sized_by_the_flags_of_other_engines() -> None:
    assert read("M --disable-cuda-graph", "serve").config.enforce_eager
    assert read("M --enforce-eager", "serve").config.enforce_eager
    for line in ("M --cuda-graph-bs 1 2 4", "M --cudagraph-capture-sizes 1 2 4", "M --cudagraph-capture-sizes [1,2,4]"):
        assert read(line, "serve").config.cudagraph_capture_sizes == (1, 2, 4)
    with pytest.raises(ConfigError, match="--cudagraph-capture-sizes must be at least 1, not 0"):
        read("M --cudagraph-capture-sizes 0", "serve")
    with pytest.raises(ConfigError, match="--cudagraph-capture-sizes takes whole numbers"):
        read("M --cudagraph-capture-sizes few", "serve")


def test_drafts_of_other_methods_change_nothing_and_what_is_no_config_is_told() -> None:
    launch = read_launch(shlex.split("""M -sc '{"method": "eagle3", "num_speculative_tokens": 2}'"""), OWN)
    assert launch.arguments == ("--", "M") and "changes nothing: drafts change the speed" in launch.notes[0]
    for wrong in ("[3]", "three", '{"method": "mtp"}'):
        with pytest.raises(ConfigError, match="--speculative-config"):
            read_launch(["M", "--speculative-config", wrong], OWN)


@pytest.mark.parametrize(
    "line",
    [
        "--hf-overrides {}",
        "--json-model-override-args={}",
        "--quantization fp8",
        "--tool-call-parser llama3_json",
        "--reasoning-parser gpt_oss",
        "--tokenizer other",
        "--lora-modules a=b c=d",
        "--logprobs-mode processed_logits",
        "--nnodes 2",
        "--headless",
        "--ssl_keyfile key.pem",
        "--logits-processors a:b",
    ],
)
def test_what_would_change_answers_is_refused_by_name(line: str) -> None:
    name = line.replace("_keyfile", "-keyfile").partition(" ")[0].partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{name} .*not supported"):
        read_launch(shlex.split(f"M {line}"), OWN)
    done = CliRunner().invoke(app, ["serve", "M", *shlex.split(line)])
    assert done.exit_code == 2 and name in done.output


def test_several_names_follow_one_flag_and_the_model_may_stand_behind() -> None:
    def names(line: str, named: bool = False) -> Launch:
        return read_launch(shlex.split(line), OWN, named)

    assert names("M --served-model-name a b --port 1").arguments == (
        *("--served-model-name", "a", "--served-model-name", "b", "--port", "1"),
        *("--", "M"),
    )
    assert names("--served-model-name a M").arguments == ("--served-model-name", "a", "--", "M")
    assert names("--served-model-name a b", named=True).arguments[-2:] == ("--served-model-name", "b")
    assert names("M --api-key k1 k2").arguments == ("--api-key", "k1", "--api-key", "k2", "--", "M")
    served = read("M --served-model-name qwen claude-haiku '*'").names
    assert served is not None and served.all == ("qwen", "claude-haiku") and served.any_name
    assert read("M").config.name == "M" and read("M --allowed-origins '[\"*\"]'").origins == ("*",)


def test_our_own_flags_are_left_as_they_are() -> None:
    line = ["M", "--max_model_len", "64", "--coalesce", "--seed=3", "--unknown", "--port", "-1", "--", "x"]
    told = ("--max-model-len", "64", "--coalesce", "--seed=3", "--unknown", "--port", "-1", "--", "M", "x")
    assert read_launch(line, OWN) == Launch(told)
    done = CliRunner().invoke(app, ["serve", "M", "--max-queu", "3"])
    assert done.exit_code == 2 and "--max-queu" in done.output and "--max-queue" in done.output


@pytest.mark.parametrize("line", ["M --tp", "M --served-model-name --port 1", "M --cuda-graph-bs"])
def test_flag_without_its_value_is_told(line: str) -> None:
    with pytest.raises(ConfigError, match="needs a value"):
        read_launch(shlex.split(line), OWN)


def test_table_names_each_flag_once_and_ours_exist() -> None:
    names = [name for row in FLAGS for name in row.names]
    assert len(names) == len(set(names))
    group: Any = typer.main.get_command(app)
    ours = {name for param in group.commands["serve"].params for name in (*param.opts, *param.secondary_opts)}
    for row in FLAGS:
        if isinstance(row.fate, As):
            assert row.fate.name in ours | {""}, row
        elif isinstance(row.fate, Switch):
            assert row.fate.name in ours
        else:
            assert not set(row.names) & ours, row


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--async-scheduling", "on"),
        ("--no-async-scheduling", "off"),
        ("--disable-overlap-schedule", "off"),
        ("--async-scheduling off", "off"),
        ("--async-scheduling=auto", "auto"),
        ("--async-scheduling --seed 1", "on"),
    ],
)
def test_switch_of_others_is_a_choice_here(line: str, expected: str) -> None:
    assert read(f"M {line}").config.async_scheduling == expected


def test_a_key_is_never_taken_for_the_model() -> None:
    launch = read_launch(shlex.split("--api-key one two"), OWN)
    assert "--" not in launch.arguments


EVENTS = '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5600", "topic": "kv-events"}'


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (EVENTS, ("tcp://*:5600", None, "kv-events")),
        ('{"enable_kv_cache_events": true}', ("tcp://*:5557", None, "")),
        (
            '{"enable_kv_cache_events": true, "replay_endpoint": "ipc:///tmp/r", "hwm": 9}',
            ("tcp://*:5557", "ipc:///tmp/r", ""),
        ),
        ('{"enable_kv_cache_events": false, "endpoint": "tcp://*:5600"}', (None, None, "")),
        ('{"endpoint": "tcp://*:5600"}', (None, None, "")),
        ('{"enable_kv_cache_events": true, "publisher": "null"}', (None, None, "")),
    ],
)
def test_events_are_configured_as_for_vllm(told: str, expected: tuple[str | None, str | None, str]) -> None:
    config = read(f"M --kv-events-config '{told}'").config
    assert (config.kv_events_endpoint, config.kv_events_replay_endpoint, config.kv_events_topic) == expected


@pytest.mark.parametrize(
    "told", ['{"enable_kv_cache_events": true, "endpont": "x"}', '{"enable_kv_cache_events": true, "topic": 3}']
)
def test_what_is_wrong_in_the_configuration_of_events_is_told(told: str) -> None:
    with pytest.raises(ConfigError, match="--kv-events-config"):
        read_launch(["M", "--kv-events-config", told], OWN)
