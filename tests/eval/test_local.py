"""The whole evaluation of an engine in this process, on a small checkpoint of random weights whose state matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stepwell.base.errors import ConfigError
from stepwell.cache.moves import Tier
from stepwell.cli import app
from stepwell.engine.config import engine_config
from stepwell.eval import controls
from stepwell.eval.local import LocalSubject
from stepwell.eval.task import SHOTS, TEST, Form, read_problems, write_questions
from stepwell.sched.request import SamplingParams
from stepwell.testing.checkpoint import write_checkpoint
from tests.amounts import long

SMALL = ("--questions", "5", "--shots", "2", "--contexts", "1", "--max-tokens", "16", "--scored", "3")
MEMORY = ("--dtype", "float32", "--device-memory", "32MiB", "--host-memory", "64MiB")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), hidden=128, layers=4, mtp=True)


def judged(*words: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["eval", *words, "--json"])
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "where",
    [
        long(("device",), id="device"),
        long(("host",), id="host"),
        long(("host", "--num-speculative-tokens", "2"), id="host with drafts"),
        pytest.param(("disk",), id="disk"),
    ],
)
def test_what_comes_from_a_tier_is_as_good_as_new_and_tampering_shows(
    where: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    disk = ("--disk-cache", f"{tmp_path}:256MiB") if where[0] == "disk" else ()
    status, found = judged(str(model), *SMALL, *MEMORY, "--tier", *where, *disk)
    assert status == 0
    assert found["questions"] == 5 and found["flips"] == 0 and found["loads_failed"] == 0
    assert found["identical_continuations"] == 5
    assert found["served_from_tier"] > 0.9
    assert found["pass1"]["tokens"][where[0]] < found["pass2"]["tokens"][where[0]]
    assert found["loss_difference_worst"] < 1e-4
    for control in ("zero_state", "foreign_state", "zero_kv", "shifted_kv"):
        assert found[f"control_{control}"], control  # with random weights it may have either sign
        assert found["answers_changed"][control] > 0, control


def test_of_an_answer_that_is_cached_the_rest_is_scored(model: Path) -> None:
    config = engine_config({"model": str(model), "dtype": "float32", "device_memory": "32MiB", "host_memory": 0})
    with LocalSubject(config, Tier.DEVICE, 16, 1) as subject:
        prompt = subject.tokenizer.encode("Question: how much is left? " * 4)
        (heard,) = subject.run([subject.request(prompt, SamplingParams(max_tokens=40, ignore_eos=True))])
        gold = np.array(heard.tokens, np.int32)
        cold, resumed = subject.score(prompt, gold, read=False), subject.score(prompt, gold)
    assert len(cold) == 40 and 0 < len(resumed) < 32
    assert resumed == pytest.approx(cold[-len(resumed) :], abs=1e-4)


def test_the_state_of_another_question_needs_another_question(model: Path) -> None:
    done = CliRunner().invoke(app, ["eval", str(model), "--questions", "1"])
    assert done.exit_code == 2 and "give two --questions or more, or --scored 0" in " ".join(done.output.split())


@pytest.mark.long
def test_one_scored_question_is_given_the_state_of_the_next_one_and_missing_legs_are_told(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    config = engine_config({"model": str(model), "dtype": "float32", "device_memory": "32MiB", "host_memory": "64MiB"})
    questions = write_questions(Form(2, 1, 0, False, marks=False), read_problems(TEST), read_problems(SHOTS))
    usual = controls._pages
    with LocalSubject(config, Tier.HOST, 16, 1) as subject:
        losses = controls.measure(subject, questions, 1, lambda more: None)
        assert losses.questions == 1 and losses.controls["foreign_state"][1] > 0 and losses.skipped == ()
        monkeypatch.setattr(
            controls, "_pages", lambda subject, leg: usual(subject, leg)[:0] if leg == "image" else usual(subject, leg)
        )
        losses = controls.measure(subject, questions, 1, lambda more: None)
        assert losses.skipped == ("zero_state", "foreign_state") and set(losses.controls) == {"zero_kv", "shifted_kv"}


@pytest.mark.long
def test_tampering_leaves_no_trace(model: Path) -> None:
    config = engine_config({"model": str(model), "dtype": "float32", "device_memory": "32MiB", "host_memory": "64MiB"})
    with LocalSubject(config, Tier.HOST, 16, 1) as subject:
        from stepwell.eval.controls import CONTROLS, tampered

        prompt = subject.tokenizer.encode("A prompt that is long enough to be kept in some blocks of its own. " * 12)
        gold = subject.tokenizer.encode(" and what follows it")
        cold = subject.score(prompt, gold, read=False)
        subject.bring(prompt)
        before = subject.arenas[0].rows.clone()
        for leg, change in CONTROLS.values():
            with tampered(subject, leg, change):
                pass
            assert (subject.arenas[0].rows == before).all()
        assert subject.score(prompt, gold) == pytest.approx(cold, abs=1e-4)


def test_failed_loads_are_counted_and_told_by_the_exit_status(model: Path) -> None:
    config = engine_config(
        {
            "model": str(model),
            "dtype": "float32",
            "device_memory": "32MiB",
            "host_memory": "64MiB",
            "faults": ("fail:kv:host->*:count=1",),
        }
    )
    with LocalSubject(config, Tier.HOST, 4, 1) as subject:
        prompt = "A prompt that is long enough to be kept in some blocks of its own. " * 12
        first = subject.answer([prompt], lambda more: None)
        again = subject.answer([prompt], lambda more: None)
        assert not first[0].failed and again[0].failed and subject.failed_loads() == 1
        assert first[0].tokens == again[0].tokens


def test_a_tier_that_is_not_there_cannot_be_judged(model: Path) -> None:
    for tier, words in ((Tier.HOST, "--host-memory"), (Tier.DISK, "--disk-cache")):
        with pytest.raises(ConfigError, match=words):
            LocalSubject(engine_config({"model": str(model), "host_memory": 0}), tier, 4, 1)


@pytest.mark.parametrize("words", [(), ("model", "--url", "http://127.0.0.1:1")], ids=["neither", "both"])
def test_a_model_or_a_server_is_needed_and_not_both(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["eval", *words])
    assert done.exit_code == 2 and "MODEL" in done.output and "--url" in done.output
