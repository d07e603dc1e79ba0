"""A real hybrid above an external store: every route by way of it gives the cold answer.

The store is a dictionary here, in place of LMCache; tests with LMCache itself, and with Redis below it, run where these are installed.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.cache.clear import quarantine  # noqa: E402
from stepwell.cache.moves import Tier  # noqa: E402
from stepwell.cache.reuse.outcome import Reason  # noqa: E402
from stepwell.engine.external_tier import close_in_time  # noqa: E402
from stepwell.store.external import lmcache  # noqa: E402
from stepwell.store.external.backend import DictBackend  # noqa: E402
from tests.engine.disk import Engine, forget, small_config, small_model  # noqa: E402

PROMPT = [5 + 7 * i % 300 for i in range(700)]
"""Two whole chunks of 256 tokens, and a rung at their end."""
LIMIT = 30.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def cold(model: Path) -> tuple[int, ...]:
    """The answer without any cache."""
    with Engine.of(model, None, enable_prefix_caching=False, rung_grid=16) as engine:
        return engine.ask(PROMPT).token_ids


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[str, DictBackend]:
    """Stores by the space that an engine asks for: two engines share one where all that bytes depend on is the same."""
    made: dict[str, DictBackend] = {}

    def backend(config: Any, space: str, pages: tuple[int, int], page_bytes: int, rank: int, ranks: int) -> DictBackend:
        return made.setdefault(space, DictBackend())

    monkeypatch.setattr(lmcache, "read_config", lambda: SimpleNamespace(chunk_size=256))
    monkeypatch.setattr(lmcache, "LMCacheBackend", backend)
    return made


def engine(model: Path, **flags: Any) -> Engine:
    return Engine.of(model, None, kv_offload="lmcache", host_memory=0, rung_grid=16, **flags)


def only(store: dict[str, DictBackend]) -> DictBackend:
    (found,) = store.values()
    return found


@pytest.mark.parametrize("partial", ["private", "drop"])
def test_a_device_hit_at_any_block_of_a_chunk_goes_on_from_the_store(
    model: Path, cold: tuple[int, ...], store: dict[str, DictBackend], partial: str
) -> None:
    with engine(model, lmcache_partial_chunk=partial) as one:
        assert one.ask(PROMPT).token_ids == cold
        one.settle()
        for hit in range(0, 256, 16):
            forget(one.loop, Tier.DEVICE)
            if hit:
                one.ask(PROMPT[: hit + 1])
                one.settle()
            said = one.ask(PROMPT)
            outcome = said.outcome
            assert (outcome.hit, outcome.device, outcome.external) == (hit, hit, 512 - hit), outcome
            assert (outcome.state_tier, said.token_ids) == (Tier.EXTERNAL, cold)
            one.settle()
        assert not only(store).leases


def test_another_engine_of_the_same_model_goes_on_from_it_and_one_of_another_salt_does_not(
    model: Path, cold: tuple[int, ...], store: dict[str, DictBackend]
) -> None:
    with engine(model) as one:
        one.ask(PROMPT)
        one.settle()
    with engine(model) as other:
        assert other.ask(PROMPT, salt="another").outcome.external == 0
        said = other.ask(PROMPT)
        assert (said.outcome.external, said.token_ids) == (512, cold)
    assert len(store) == 1


def test_engines_whose_bytes_differ_share_nothing(model: Path, store: dict[str, DictBackend]) -> None:
    for flags in ({}, {"state_dtype": "bfloat16"}, {"dtype": "bfloat16"}, {"block_size": 32, "decode_rung_tokens": 32}):
        with Engine.of(model, None, kv_offload="lmcache", host_memory=0, **flags) as one:
            assert one.ask(PROMPT).outcome.external == 0
            one.settle()
    assert len(store) == 4


@pytest.mark.parametrize("what", ["kv", "image"])
@pytest.mark.parametrize("harm", ["garbage", "gone"])
def test_a_failed_leg_keeps_the_hit_and_is_stored_again(
    model: Path,
    cold: tuple[int, ...],
    store: dict[str, DictBackend],
    harm: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine(model) as one:
        one.ask(PROMPT)
        one.settle()
        forget(one.loop, Tier.DEVICE)
        one.ask(PROMPT[:81])
        one.settle()
        backend, real = only(store), DictBackend.get
        keys = [key for key in backend.objects if key[0] == what]
        assert keys
        if harm == "garbage":
            for key in keys:
                backend.objects[key][-1] ^= 1
        else:  # between the lookup and the load

            def evicting(self: DictBackend, kind: Any, name: Any) -> Any:
                if kind == what:
                    self.forget(kind, [name])
                return real(self, kind, name)

            monkeypatch.setattr(DictBackend, "get", evicting)
        said = one.ask(PROMPT)
        wanted = Reason.LOAD_FAILED_KV if what == "kv" else Reason.LOAD_FAILED_STATE
        assert (said.outcome.boundary, said.outcome.hit, said.outcome.reason) == (80, 80, wanted)
        assert said.token_ids == cold
        monkeypatch.setattr(DictBackend, "get", real)
        for _ in range(2):
            one.settle()
            forget(one.loop, Tier.DEVICE)
            said = one.ask(PROMPT)
        assert (said.outcome.external, said.token_ids) == (512, cold)


def test_a_store_that_hangs_as_it_closes_is_left_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    class Hanging(DictBackend):
        def close(self) -> None:
            assert opened.wait(LIMIT)

    opened = threading.Event()
    assert not close_in_time(Hanging(), 0.01)
    assert "did not close within 0.01 s" in caplog.text
    opened.set()
    assert close_in_time(DictBackend(), LIMIT)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"kv_offload": "lmcach"}, "use one of native, lmcache"),
        ({"kv_offload": "lmcache", "lmcache_lookup": "some"}, "use one of all, rank0"),
        ({"kv_offload": "lmcache", "lmcache_partial_chunk": "keep"}, "use one of private, drop"),
        ({"kv_offload": "lmcache", "enable_prefix_caching": False}, "--no-enable-prefix-caching"),
    ],
)
def test_flags_that_cannot_work_are_refused(model: Path, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small_config(model, None, **flags)


# ---- LMCache itself ---------------------------------------------------------------------------------------------


def _has_lmcache() -> bool:
    try:
        return find_spec("lmcache.v1") is not None
    except ModuleNotFoundError:  # what is called so may be the bench of that name
        return False


with_lmcache = pytest.mark.skipif(
    not _has_lmcache(), reason="LMCache is not installed: pip install 'stepwell[lmcache]'"
)
with_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not on the PATH")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.1")
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "256")
    return monkeypatch


@with_lmcache
def test_a_load_from_lmcache_gives_the_cold_answer(
    model: Path, cold: tuple[int, ...], settings: pytest.MonkeyPatch
) -> None:
    with engine(model) as one:
        one.ask(PROMPT)
        for hit in (0, 16, 112, 240):
            one.settle()
            forget(one.loop, Tier.DEVICE)
            if hit:
                one.ask(PROMPT[: hit + 1])
                one.settle()
            said = one.ask(PROMPT)
            assert (said.outcome.hit, said.outcome.external, said.token_ids) == (hit, 512 - hit, cold)


@with_lmcache
def test_lmcache_below_files_outlives_the_engine(
    model: Path, cold: tuple[int, ...], settings: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings.setenv("LMCACHE_LOCAL_DISK", str(tmp_path))
    settings.setenv("LMCACHE_MAX_LOCAL_DISK_SIZE", "0.1")
    _share(model, cold)


@pytest.fixture
def redis() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server of its own, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port, process
    finally:
        process.kill()
        process.wait(LIMIT)


@with_lmcache
def test_no_log_has_the_password_of_the_server(
    settings: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    settings.setenv("LMCACHE_REMOTE_URL", "redis://user:s3cret@cache.internal")
    with caplog.at_level("INFO"):
        assert "s3cret" in lmcache.read_config().remote_url
    assert "s3cret" not in caplog.text + "".join(capfd.readouterr())


@with_lmcache
@with_redis
def test_two_engines_share_what_redis_has(
    model: Path, cold: tuple[int, ...], settings: pytest.MonkeyPatch, redis: tuple[int, subprocess.Popen[bytes]]
) -> None:
    settings.setenv("LMCACHE_REMOTE_URL", f"redis://127.0.0.1:{redis[0]}")
    _share(model, cold)


@with_lmcache
@with_redis
def test_a_dead_redis_costs_nothing_but_its_hits(
    model: Path, cold: tuple[int, ...], settings: pytest.MonkeyPatch, redis: tuple[int, subprocess.Popen[bytes]]
) -> None:
    settings.setenv("LMCACHE_REMOTE_URL", f"redis://127.0.0.1:{redis[0]}")
    with engine(model) as one:
        one.ask(PROMPT)
        one.settle()
        redis[1].kill()
        redis[1].wait(LIMIT)
        other = [7, *PROMPT]
        assert one.ask(other).outcome.cached == 0
        forget_at_rest(one)
        assert one.ask(PROMPT).token_ids == cold


def forget_at_rest(one: Engine) -> None:
    one.settle()
    forget(one.loop, Tier.DEVICE)


def _share(model: Path, cold: tuple[int, ...]) -> None:
    """One engine stores, and another one, which comes later, goes on from that."""
    with engine(model) as one:
        one.ask(PROMPT)
        one.settle()
        time.sleep(1.0)  # LMCache writes what it has to what lies below it a little later
    with engine(model) as other:
        said = other.ask(PROMPT)
        assert (said.outcome.external, said.token_ids) == (512, cold)


@with_lmcache
@with_redis
def test_what_is_quarantined_leaves_redis_and_no_other_engine_finds_it(
    model: Path, cold: tuple[int, ...], settings: pytest.MonkeyPatch, redis: tuple[int, subprocess.Popen[bytes]]
) -> None:
    settings.setenv("LMCACHE_REMOTE_URL", f"redis://127.0.0.1:{redis[0]}")
    _share(model, cold)
    with engine(model) as one:
        assert one.ask(PROMPT).outcome.external == 512
        one.settle()
        quarantine(one.loop.directory, "", np.array(PROMPT, np.int32))
        one.ask([3, 4])
        one.settle()
        end = time.monotonic() + LIMIT
        while objects_in(redis[0]) and time.monotonic() < end:
            time.sleep(0.05)
        assert objects_in(redis[0]) == 0
        assert one.ask(PROMPT).outcome.external == 0
    with engine(model) as other:
        said = other.ask(PROMPT)
        assert (said.outcome.external, said.token_ids) == (0, cold)


def objects_in(port: int) -> int:
    """Keys that the server has."""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as link:
        link.sendall(b"DBSIZE\r\n")
        return int(link.recv(64).strip().removeprefix(b":"))
