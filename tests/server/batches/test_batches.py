"""Files and batches: bulk work that survives a restart, keeps to its owner and lets others go first."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.base.errors import ConfigError
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import MAX_PRIORITY
from stepwell.server.batches.lines import MAX_LINES, answered, fault_of, faults_of
from stepwell.server.batches.store import MAX_BATCHES, MAX_FILES, Batch, BatchStore, FileInfo, NoRoom
from stepwell.server.batches.turns import AT_ONCE, Turns
from stepwell.server.http.keys import Keys
from tests.engine.scripted import ScriptedLoop
from tests.server.harness import Running, eventually, running
from tests.server.http.test_gate import KEY, MINE, OTHER, THEIRS

COMPLETIONS = "/v1/completions"


def lines(count: int, url: str = COMPLETIONS, **fields: Any) -> bytes:
    body = {"max_tokens": 2, **fields}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in url else {"prompt": "one two"}
    calls = ({"custom_id": f"call-{i}", "method": "POST", "url": url, "body": body} for i in range(count))
    return b"".join(json.dumps(call).encode() + b"\n" for call in calls)


@pytest.fixture
def served(tokenizer: Tokenizer, tmp_path: Path) -> Iterator[Running]:
    keys = Keys([KEY, OTHER], salt_per_key=True)
    with running(tokenizer, keys=keys, batches=BatchStore(tmp_path, 1 << 20)) as up:
        yield up


def stored(store: BatchStore, data: bytes, owner: str = "") -> FileInfo:
    with store.coming(owner) as file_id:
        store.expect(file_id, len(data))
        store.path(file_id).write_bytes(data)
        return store.add(file_id, "calls.jsonl")


def client(server: Running, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def begun(api: openai.OpenAI, data: bytes, endpoint: Any = COMPLETIONS) -> str:
    file = api.files.create(file=("calls.jsonl", data), purpose="batch")
    return api.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h").id


def ended(api: openai.OpenAI, batch_id: str) -> Any:
    assert eventually(lambda: api.batches.retrieve(batch_id).status in ("completed", "failed", "cancelled"))
    return api.batches.retrieve(batch_id)


def test_each_line_is_answered_once_as_its_call_would_be(served: Running) -> None:
    api = client(served)
    for endpoint in (COMPLETIONS, "/v1/chat/completions"):
        told = ended(api, begun(api, lines(20, endpoint), endpoint))
        assert told.status == "completed" and told.request_counts.completed == told.request_counts.total == 20
        answers = [json.loads(line) for line in api.files.content(told.output_file_id).text.splitlines()]
        assert sorted(a["custom_id"] for a in answers) == sorted(f"call-{i}" for i in range(20))
        assert all(a["response"]["status_code"] == 200 and a["response"]["body"]["usage"] for a in answers)
    asked = served.loop.seen[-1]
    assert asked.priority == MAX_PRIORITY and asked.salt != ""
    alone = httpx.post(served.url + COMPLETIONS, json={"prompt": "one two", "max_tokens": 2}, headers=MINE).json()
    assert answers[0]["response"]["body"]["object"] == "chat.completion" and alone["object"] == "text_completion"
    assert served.loop.seen[-1].salt == asked.salt


def test_what_is_wrong_with_one_line_is_its_own(served: Running) -> None:
    api = client(served)
    wrong = json.dumps({"custom_id": "w", "method": "POST", "url": COMPLETIONS, "body": {"prompt": "x", "top_p": 7}})
    told = ended(api, begun(api, lines(2) + wrong.encode()))
    assert (told.status, told.request_counts.completed, told.request_counts.failed) == ("completed", 2, 1)
    (fault,) = [json.loads(line) for line in api.files.content(told.error_file_id).text.splitlines()]
    assert (fault["custom_id"], fault["response"]["status_code"]) == ("w", 400)
    assert fault["response"]["body"]["error"]["param"] == "top_p"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty_file"),
        (b"{\n", "invalid_json_line"),
        (b"[1]\n", "invalid_request"),
        (lines(1) * 2, "duplicate_custom_id"),
        (lines(1, "/v1/responses"), "invalid_url"),
    ],
)
def test_file_that_cannot_be_used_fails_its_batch_with_the_line(served: Running, data: bytes, code: str) -> None:
    told = ended(client(served), begun(client(served), data))
    assert told.status == "failed" and told.errors.data[0].code == code


def test_others_go_first_and_a_batch_can_be_cancelled(tokenizer: Tokenizer, tmp_path: Path) -> None:
    loop = ScriptedLoop()
    with running(tokenizer, loop=loop, batches=BatchStore(tmp_path, 1 << 20)) as up:
        loop.gate.clear()  # nothing is admitted: whoever asks waits
        api = client(up)
        batch_id = begun(api, lines(40))
        assert eventually(lambda: up.client.waiting > 0)
        time.sleep(0.3)
        assert up.client.waiting <= 8  # of forty lines; while any waits no other is sent
        assert api.batches.cancel(batch_id).status == "cancelling"
        told = ended(api, batch_id)
        assert told.status == "cancelled" and told.request_counts.completed == 0
        assert eventually(lambda: up.client.open == 0)
        loop.gate.set()
        assert ended(api, begun(api, lines(3))).request_counts.completed == 3


def test_work_goes_on_after_a_restart_where_it_stood(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = BatchStore(tmp_path, 1 << 20)
    asked = stored(store, lines(12))
    batch_id = f"batch_{'0' * 24}"
    good, bad = (info.id for info in store.add_answers("", batch_id))
    times = {"created_at": 1, "in_progress_at": 2, "status": "in_progress", "total": 12, "completed": 1}
    batch = Batch(batch_id, "", COMPLETIONS, asked.id, "24h", output_file_id=good, error_file_id=bad, **times)  # type: ignore[arg-type]
    store.keep(batch)
    kept = {"id": "x", "custom_id": "call-3", "response": {"status_code": 200}, "error": None}
    with store.path(batch.output_file_id).open("wb") as file:
        file.write(json.dumps(kept).encode() + b'\n{"id": "half a li')
    with running(tokenizer, batches=BatchStore(tmp_path, 1 << 20)) as up:
        api = client(up)
        told = ended(api, batch_id)
        assert told.request_counts.completed == 12
        answers = [json.loads(line) for line in api.files.content(told.output_file_id).text.splitlines()]
        assert sorted(a["custom_id"] for a in answers) == sorted(f"call-{i}" for i in range(12))
        assert answers[0] == kept and len(up.loop.seen) == 11


def test_each_key_sees_its_own_files_and_batches_alone(served: Running) -> None:
    mine, theirs = client(served), client(served, OTHER)
    batch_id = begun(mine, lines(1))
    file_id = mine.files.list().data[0].id
    ended(mine, batch_id)
    assert not theirs.files.list().data and not theirs.batches.list().data
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{batch_id}"):
        assert httpx.get(served.url + path, headers=THEIRS).status_code == 404
    assert httpx.delete(served.url + f"/v1/files/{file_id}", headers=THEIRS).status_code == 404
    with pytest.raises(openai.NotFoundError):
        theirs.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
    assert mine.files.delete(file_id).deleted and mine.batches.list().data[0].id == batch_id


def test_room_is_bounded_and_nothing_is_kept_of_what_does_not_fit(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with running(tokenizer, batches=BatchStore(tmp_path, 1000)) as up:
        form = {"file": ("big.jsonl", b"x" * 2000)}
        answer = httpx.post(up.url + "/v1/files", data={"purpose": "batch"}, files=form)
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "no_room"
        huge = httpx.post(up.url + "/v1/files", data={"purpose": "batch"}, files={"file": ("h", b"x" * 200_000)})
        assert huge.status_code == 413
        assert not list((tmp_path / "files").iterdir())
        for wrong in ({"purpose": "fine-tune"}, {}):
            assert httpx.post(up.url + "/v1/files", data=wrong, files={"file": ("a", b"x")}).status_code == 400
        assert httpx.post(up.url + "/v1/files", json={}).status_code == 400


def test_a_batch_without_room_for_answers_fails_and_the_next_is_served(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = BatchStore(tmp_path, 1 << 20)
    add, refused = store.add_answers, []

    def without_room(owner: str, batch_id: str) -> tuple[FileInfo, FileInfo]:
        if not refused:
            refused.append(batch_id)
            raise NoRoom("all is taken")
        return add(owner, batch_id)

    store.add_answers = without_room  # type: ignore[method-assign]
    with running(tokenizer, batches=store) as up:
        api = client(up)
        assert ended(api, begun(api, lines(2))).status == "failed"
        assert ended(api, begun(api, lines(2))).status == "completed"


def test_server_without_a_folder_says_how_to_give_one(server: Running) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/files/../../etc", "/v1/batches/x"):
        answer = httpx.get(server.url + path)
        assert answer.status_code == 404
    assert "--batches PATH:SIZE" in httpx.get(server.url + "/v1/batches").json()["error"]["message"]


def test_folder_that_cannot_be_used_is_told_with_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for text in ("here", f"{tmp_path}:x", f"{tmp_path}/file:1GiB"):
        with pytest.raises(ConfigError):
            BatchStore.parse(text)


def test_what_is_damaged_on_disk_counts_as_absent(tmp_path: Path) -> None:
    store = BatchStore(tmp_path, 1000)
    batch = store.keep(Batch(f"batch_{'0' * 24}", "me", COMPLETIONS, f"file-{'0' * 24}", "24h", 1))
    (tmp_path / "batches" / f"batch_{'1' * 24}.json").write_text("{")
    (tmp_path / "batches" / "other.json").write_bytes((tmp_path / "batches" / f"{batch.id}.json").read_bytes())
    assert BatchStore(tmp_path, 1000).batches() == [batch]


@given(st.binary(max_size=200))
def test_no_line_whatever_breaks_the_reader(text: bytes) -> None:
    fault = fault_of(text, COMPLETIONS, set())
    assert fault is not None and all(fault)


def test_a_batch_whose_answers_do_not_fit_ends_with_those_that_do(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = lines(40)
    room = len(data) + 6000
    with running(tokenizer, batches=BatchStore(tmp_path, room)) as up:
        api = client(up)
        told = ended(api, begun(api, data))
        assert told.status == "failed" and told.errors.data[0].code == "storage"
        assert 0 < told.request_counts.completed < 40
        answers = api.files.content(told.output_file_id).text.splitlines()
        assert len(answers) == told.request_counts.completed and all(map(json.loads, answers))
        assert sum(path.stat().st_size for path in (tmp_path / "files").glob("*.data")) <= room
        assert eventually(lambda: up.client.open == 0)


def test_a_line_longer_than_a_call_may_be_is_told_and_never_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    for end in (b"", b"\n"):
        path.write_bytes(lines(2) + b"x" * 50_000 + end + lines(1))
        faults, count = faults_of(path, COMPLETIONS, 10_000)
        assert count == 3 and [(line, code) for line, code, _ in faults] == [(3, "line_too_long")]
    path.write_bytes(lines(1) + b"\n" * (MAX_LINES + 5))
    assert faults_of(path, COMPLETIONS, 10_000) == ([], 1)
    path.write_bytes(b"{}\n" * (MAX_LINES + 5))
    faults, count = faults_of(path, COMPLETIONS, 10_000)
    assert count == MAX_LINES + 1 and faults[0][1] == "too_many_lines"


@given(st.lists(st.integers(0, 200_000), max_size=4), st.integers(0, 200_000))
@settings(max_examples=30, deadline=None)
def test_an_unfinished_last_line_is_cut_off_however_long(sizes: list[int], rest: int) -> None:
    whole = b"".join(
        json.dumps({"custom_id": f"{i}", "x": "y" * size}).encode() + b"\n" for i, size in enumerate(sizes)
    )
    file = io.BytesIO(whole + b"z" * rest)
    assert answered(file) == {f"{i}" for i in range(len(sizes))}
    assert file.getvalue() == whole and file.tell() == len(whole)


def test_owners_are_served_by_turns(tokenizer: Tokenizer, tmp_path: Path) -> None:
    loop, keys = ScriptedLoop(), Keys([KEY, OTHER], salt_per_key=True)
    with running(tokenizer, loop=loop, keys=keys, batches=BatchStore(tmp_path, 1 << 20)) as up:
        loop.gate.clear()
        first = begun(client(up), lines(200))
        assert eventually(lambda: up.client.waiting > 0)
        second = begun(client(up, OTHER), lines(4))
        time.sleep(0.2)
        loop.gate.set()
        told = ended(client(up, OTHER), second)
        assert told.status == "completed"
        before = client(up).batches.retrieve(first).request_counts.completed
        assert before < 200, "four lines do not wait for two hundred"
        assert ended(client(up), first).request_counts.completed == 200


def test_places_are_dealt_evenly_and_to_whoever_waited_longest() -> None:
    async def run() -> None:
        turns, got = Turns(lambda: True), list[str]()

        async def want(owner: str) -> None:
            assert await turns.take(owner, lambda: True)
            got.append(owner)

        wanting = []
        for owner in ("many",) * 20 + ("few", "one"):
            wanting.append(asyncio.create_task(want(owner)))
            await asyncio.sleep(0)
        assert got == ["many"] * AT_ONCE
        for taken in range(AT_ONCE + 1, AT_ONCE + 5):
            turns.give("many")
            while len(got) < taken:
                await asyncio.sleep(0.001)
        assert set(got[AT_ONCE : AT_ONCE + 2]) == {"few", "one"} and got[AT_ONCE + 2 :] == ["many", "many"]
        assert not await turns.take("late", lambda: False)
        for task in wanting:
            task.cancel()

    asyncio.run(run())


def test_no_line_is_sent_while_another_call_waits() -> None:
    async def run() -> None:
        quiet = False
        turns = Turns(lambda: quiet)
        taking = asyncio.create_task(turns.take("a", lambda: True))
        await asyncio.sleep(0.12)
        assert not taking.done()
        quiet = True
        assert await asyncio.wait_for(taking, 20)

    asyncio.run(run())


def test_batches_are_kept_up_to_a_number_and_the_oldest_that_ended_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_BATCHES >= 100
    monkeypatch.setattr("stepwell.server.batches.store.MAX_BATCHES", 3)
    store = BatchStore(tmp_path, 1000)

    def batch(number: int, owner: str = "me", **fields: Any) -> Batch:
        return Batch(f"batch_{number:024x}", owner, COMPLETIONS, f"file-{0:024x}", "24h", number, **fields)

    store.begin(batch(9, "you"))
    for number in range(5):
        store.begin(batch(number, status="completed"))
    assert [b.created_at for b in store.batches("me")] == [2, 3, 4] and len(store.batches("you")) == 1
    for number in (5, 6, 7):
        store.begin(batch(number))
    with pytest.raises(NoRoom, match="3 batches are open"):
        store.begin(batch(8))
    assert [b.created_at for b in BatchStore(tmp_path, 1000).batches("me")] == [5, 6, 7]


def test_uploads_that_race_for_the_last_room_do_not_take_more(tmp_path: Path) -> None:
    store = BatchStore(tmp_path, 1000)
    with store.coming("a") as one:
        store.expect(one, 700)
        with pytest.raises(NoRoom), store.coming("a") as other:
            store.expect(other, 300)
            store.path(other).write_bytes(b"x" * 300)
            store.expect(other, 301)
        assert store.free == 300
        store.path(one).write_bytes(b"x" * 700)
        info = store.add(one, "one")
    assert store.free == 300 and len(list((tmp_path / "files").glob("*.data"))) == 1
    store.delete_file(info)
    assert store.free == 1000


def send_slowly(url: str, first: bytes, more: threading.Event, then: bytes) -> httpx.Response:
    """Upload a file in two pieces, the second once `more` is set. An empty second piece breaks the connection."""

    def body() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
        yield b'Content-Disposition: form-data; name="file"; filename="slow"\r\n\r\n' + first
        more.wait(60)
        if not then:
            raise ConnectionError
        yield then + b"\r\n--x--\r\n"

    return httpx.post(f"{url}/v1/files", content=body(), headers={"content-type": "multipart/form-data; boundary=x"})


def test_uploads_side_by_side_take_no_more_than_the_room(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store, more = BatchStore(tmp_path, 1 << 20), threading.Event()
    piece = b"x" * 400_000
    with running(tokenizer, batches=store) as up, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(send_slowly, up.url, piece, more, piece)
        assert eventually(lambda: store.free < (1 << 20) - 300_000)
        rest = {"file": ("b", b"y" * 800_000)}
        assert httpx.post(up.url + "/v1/files", data={"purpose": "batch"}, files=rest).status_code == 413
        more.set()
        assert slow.result().json()["bytes"] == 800_000 and store.free == (1 << 20) - 800_000
        assert [path.stat().st_size for path in (tmp_path / "files").glob("*.data")] == [800_000]


def test_an_upload_that_breaks_off_gives_its_room_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store, more = BatchStore(tmp_path, 1 << 20), threading.Event()
    with running(tokenizer, batches=store) as up, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(send_slowly, up.url, b"x" * 400_000, more, b"")
        assert eventually(lambda: store.free < 1 << 20)
        more.set()
        assert isinstance(slow.exception(), ConnectionError)
        assert eventually(lambda: store.free == 1 << 20)
        assert not list((tmp_path / "files").iterdir())


def test_the_start_removes_what_nothing_describes_and_nothing_else(tmp_path: Path) -> None:
    info = stored(BatchStore(tmp_path, 1000), b"x" * 100)
    lost, half = f"file-{'0' * 24}", f"batch_{'0' * 24}"
    for name in (f"files/{lost}.data", f"files/{lost}.new", f"batches/{half}.new", "files/notes.data", "files/a.new"):
        (tmp_path / name).write_bytes(b"x" * 300)
    assert BatchStore(tmp_path, 1000).free == 900
    assert {path.name for path in (tmp_path / "files").iterdir()} == {
        f"{info.id}.data",
        f"{info.id}.json",
        "notes.data",
        "a.new",
    }
    assert not list((tmp_path / "batches").iterdir())


def test_the_files_of_one_key_fail_no_batch_of_another(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FILES >= 3 * MAX_BATCHES, "the batches that are remembered can have their files"
    monkeypatch.setattr("stepwell.server.batches.store.MAX_FILES", 3)
    many, other = client(served), client(served, OTHER)
    assert ended(many, begun(many, lines(2))).status == "completed", "as many files as may be can still grow"
    with pytest.raises(openai.APIStatusError, match="a key may have 3 files, and this one has 3") as refused:
        begun(many, lines(2))
    assert refused.value.status_code == 413
    assert ended(other, begun(other, lines(2))).status == "completed"


def test_the_bytes_of_one_key_fail_no_batch_of_another(tokenizer: Tokenizer, tmp_path: Path) -> None:
    keys = Keys([KEY, OTHER, KEY])
    store = BatchStore(tmp_path, 100_000, keys.owners)
    with running(tokenizer, keys=keys, batches=store) as up:
        greedy, other = client(up), client(up, OTHER)
        greedy.files.create(file=("half.jsonl", b"x" * 49_000), purpose="batch")
        with pytest.raises(openai.APIStatusError, match=r"one key may take 48.8 KiB, .* which 2 keys share") as refused:
            greedy.files.create(file=("more.jsonl", b"x" * 1_001), purpose="batch")
        assert refused.value.status_code == 413
        told = ended(greedy, begun(greedy, lines(5)[:900].rpartition(b"\n")[0] + b"\n"))
        assert (told.status, told.errors.data[0].code) == ("failed", "storage")
        assert ended(other, begun(other, lines(20))).status == "completed"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.booleans()), max_size=30), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_no_owner_takes_more_than_a_share_whatever_comes_and_goes(
    tmp_path_factory: pytest.TempPathFactory, news: list[tuple[str, int, bool]], owners: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = BatchStore(folder, 120, owners)
    for owner, size, deletes in news:
        if deletes and store.files(owner):
            store.delete_file(store.files(owner)[-1])
        with contextlib.suppress(NoRoom):
            stored(store, b"x" * size, owner)
        used = {name: sum(info.bytes for info in store.files(name)) for name in "abc"}
        assert max(used.values()) <= 120 // owners and store.free == 120 - sum(used.values()) >= 0
    assert BatchStore(folder, 120, owners).free == store.free


def test_a_batch_has_both_files_of_answers_or_neither(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.server.batches.store.MAX_FILES", 3)
    api = client(served)
    api.files.create(file=("spare.jsonl", lines(1)), purpose="batch")
    told = ended(api, begun(api, lines(2)))
    assert (told.status, told.errors.data[0].code) == ("failed", "storage")
    assert len(api.files.list().data) == 2 and told.output_file_id is told.error_file_id is None


def test_of_two_files_of_answers_none_stays_where_the_disk_takes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, described = BatchStore(tmp_path, 1000), list[Path]()

    def replace(path: Path, target: Path) -> Path:
        if described:
            raise OSError(28, "No space left on device")
        described.append(target)
        return path.rename(target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="No space left"):
        store.add_answers("a", f"batch_{'0' * 24}")
    assert described and not store.files("a") and not list((tmp_path / "files").iterdir())


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """This process can make no file larger than `size` bytes: what is written beyond them fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_no_more_answers_ends_the_batch(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = BatchStore(tmp_path, 1 << 20)
    with running(tokenizer, batches=store) as up:
        api = client(up)
        with files_up_to(12_000):
            told = ended(api, begun(api, lines(90)))
        assert told.status == "failed" and told.errors.data[0].code == "storage"
        assert 0 < told.request_counts.completed < 60 and len(up.loop.seen) < 80, "the rest is not computed"
        answers = api.files.content(told.output_file_id).text.splitlines()
        assert len(answers) == told.request_counts.completed and all(map(json.loads, answers))
        sizes = sum(path.stat().st_size for path in (tmp_path / "files").glob("*.data"))
        assert store.free == (1 << 20) - sizes


def test_a_line_can_not_go_before_the_calls_of_others(served: Running) -> None:
    api = client(served)
    told = ended(api, begun(api, lines(1, priority=-MAX_PRIORITY)))
    assert told.request_counts.completed == 1 and served.loop.seen[-1].priority == MAX_PRIORITY


def test_what_a_crash_left_uncounted_is_measured_at_the_start(tmp_path: Path) -> None:
    store = BatchStore(tmp_path, 1000)
    info, _ = store.add_answers("a", f"batch_{'0' * 24}")
    store.path(info.id).write_bytes(b"x" * 400)
    assert BatchStore(tmp_path, 1000).free == 600
