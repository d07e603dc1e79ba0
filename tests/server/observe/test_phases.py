"""How long calls take, and the same under the names of another engine."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from stepwell.cli import app
from stepwell.engine.process.messages import Stats
from stepwell.server.observe.metrics import Metrics
from stepwell.server.observe.phases import Course
from tests.server.harness import Running


def values(text: str, *parts: str) -> dict[str, float]:
    """Samples by name, of those that begin with one of `parts`."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(parts) and not sample.name.endswith("_bucket")
    }


def test_phases_of_a_sequence_add_up_to_the_whole() -> None:
    metrics = Metrics()
    metrics.phases.ended(Course(1.0, 2.0, 5.0), 9.0, 100, 7)
    metrics.phases.ended(Course(1.0), 2.0, 3, 0)  # ended before its first token
    found = values(metrics.render().decode(), "stepwell_")
    parts = [found[f"stepwell_{name}_seconds_sum"] for name in ("queue", "prefill", "decode")]
    assert parts == [2.0, 3.0, 4.0] and found["stepwell_request_seconds_sum"] == sum(parts)
    assert found["stepwell_prompt_length_tokens_sum"] == 103 and found["stepwell_answer_length_tokens_count"] == 2


def test_every_answered_sequence_is_counted_once_and_no_other(server: Running) -> None:
    def count() -> float:
        return values(httpx.get(server.url + "/metrics").text, "stepwell_request_seconds_count")[
            "stepwell_request_seconds_count"
        ]

    before = count()
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 3}
    assert httpx.post(server.url + "/v1/completions", json=body).status_code == 200
    assert httpx.post(server.url + "/v1/completions", json={"prompt": "x", "top_p": 7}).status_code == 400
    assert count() == before + 4


def test_other_names_say_the_same(server: Running) -> None:
    metrics = Metrics()
    metrics.phases.ended(Course(0.0, 0.25, 0.5), 1.0, 40, 8)
    metrics.first_token(0.5)
    metrics.next_token(0.1)
    metrics.generated(8)
    metrics.finished("stop", empty=False)
    pages = {"device": {"free": 50, "cached": 30, "private": 20}}
    stats = Stats(queues={"running": 3, "waiting": 2}, pages=pages, counters={"preemptions": 4})
    assert "vllm:" not in metrics.render().decode()
    metrics.also_as_vllm("tiny", lambda: stats)
    text = metrics.render().decode()
    found = values(text, "vllm:")
    assert found["vllm:e2e_request_latency_seconds_sum"] == 1.0 and found["vllm:request_queue_time_seconds_sum"] == 0.25
    assert (
        found["vllm:request_prefill_time_seconds_sum"] == 0.25 and found["vllm:request_decode_time_seconds_sum"] == 0.5
    )
    assert found["vllm:request_prompt_tokens_sum"] == 40 and found["vllm:request_generation_tokens_sum"] == 8
    assert found["vllm:time_to_first_token_seconds_count"] == found["vllm:inter_token_latency_seconds_count"] == 1
    assert found["vllm:generation_tokens_total"] == 8 and found["vllm:num_preemptions_total"] == 4
    assert (found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]) == (3, 2)
    assert found["vllm:kv_cache_usage_perc"] == 0.2
    assert 'vllm:request_success_total{finished_reason="stop",model_name="tiny"} 1.0' in text
    assert 'vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="tiny"} 1.0' in text


def test_word_that_is_none_is_told(empty_model: str) -> None:
    done = CliRunner().invoke(app, ["serve", empty_model, "--metrics-compat", "sglang"])
    assert done.exit_code == 2 and "--metrics-compat" in done.output
