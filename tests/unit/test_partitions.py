"""Parts are whole or absent, whatever happens while they are written, and broken ones are never read as good."""

import contextlib
import errno
import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.partitions import PartWriter, Store, TornPartError, plain_json
from include.records import Generation, JudgeScore, JudgeVerdict, Listing

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def listing(number: int = 1, **changes: Any) -> Listing:
    values = {
        "merchant_id": "m",
        "listing_id": f"L{number}",
        "title": "Mug",
        "description": "",
        "source_updated_at": NOON,
    }
    return Listing(**(values | changes))


@pytest.fixture(params=["local", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path) if request.param == "local" else f"memory://{tmp_path}")


def generations(count: int) -> list[Generation]:
    return [Generation(text_id=f"t{i}", text=f"Copy {i} " * 50, finish_reason="stop") for i in range(count)]


def full_disk(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


@given(st.text(), st.text(), st.integers(-(10**6), 10**6))
def test_text_and_time_come_back_as_they_were(title: str, brand: str, seconds: int) -> None:
    row = listing(title=title, brand=brand, source_updated_at=NOON + timedelta(seconds=seconds, microseconds=1))
    store = Store("memory://round-trip")
    store.write_part("part.parquet", Listing, [row])
    assert list(store.read_rows(["part.parquet"], Listing)) == [row]


def test_tuples_enums_and_absent_scores_come_back_as_they_were(store: Store) -> None:
    rows = [
        JudgeScore(text_id="a", stratum="s", weight=2.5, verdict=JudgeVerdict.FAIL, unsupported=("waterproof", "ß")),
        JudgeScore(text_id="b", stratum="s", weight=1.0, verdict=JudgeVerdict.ERROR, score=0.25, raw="{"),
    ]
    store.write_part("judged/part.parquet", JudgeScore, rows)
    assert list(store.read_rows("judged", JudgeScore)) == rows


def test_local_time_with_offset_becomes_the_same_instant_in_utc(store: Store) -> None:
    west = datetime(2026, 3, 1, 22, 0, tzinfo=timezone(timedelta(hours=-8)))
    store.write_part("part.parquet", Listing, [listing(source_updated_at=west)])
    [found] = store.read_rows(["part.parquet"], Listing)
    assert found.source_updated_at == datetime(2026, 3, 2, 6, tzinfo=UTC)


def test_a_lone_surrogate_costs_one_character_and_not_its_part(store: Store) -> None:
    score = JudgeScore(text_id="a", stratum="s", weight=1, verdict=JudgeVerdict.FAIL, omitted=("bad \udc00", "good"))
    store.write_part("part.parquet", Listing, [listing(1, title="Mug \ud83d"), listing(2, title="Teapot \U0001f600")])
    store.write_part("judged.parquet", JudgeScore, [score])
    assert [row.title for row in store.read_rows(["part.parquet"], Listing)] == ["Mug \ufffd", "Teapot \U0001f600"]
    assert next(store.read_rows(["judged.parquet"], JudgeScore)).omitted == ("bad \ufffd", "good")


def test_none_where_text_is_promised_is_refused_when_it_is_written(store: Store) -> None:
    with pytest.raises(pa.ArrowInvalid, match="title"):
        store.write_part("part.parquet", Listing, [listing(title=None)])
    assert not store.exists("part.parquet")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_part_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path))
    store.write_part("bin/part.parquet", Generation, generations(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, step, full_disk)
        with pytest.raises(OSError, match="No space left"):
            store.write_part("bin/part.parquet", Generation, generations(9))
    assert os.listdir(tmp_path / "bin") == ["part.parquet"]
    assert len(list(store.read_rows("bin", Generation))) == 3


def test_a_write_on_a_really_full_device_raises_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    assert full.exists(), "Linux has it, and the project runs on Linux"
    real_open = open
    monkeypatch.setattr(
        "builtins.open", lambda path, mode="r", *a, **k: real_open(full if mode == "wb" else path, mode, *a, **k)
    )
    with pytest.raises(OSError, match="No space left"):
        Store(str(tmp_path)).write_bytes("bin/part.parquet", b"x" * 100_000)
    assert os.listdir(tmp_path / "bin") == []


def test_a_part_that_another_process_is_still_writing_is_not_listed(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_part("bin/part-00000.parquet", Generation, generations(1))
    (tmp_path / "bin" / ".part-00001.parquet.0f3a").write_bytes(b"PAR1 half of it")
    assert store.list("bin") == ["bin/part-00000.parquet"]


@pytest.mark.parametrize("kept", [0, 3, 0.5, 0.99, -1])
def test_a_torn_part_is_left_out_by_its_owner_and_an_error_for_readers(kept: float, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for number in range(2):
        store.write_part(f"bin/part-{number:05d}.parquet", Generation, generations(200))
    torn = tmp_path / "bin" / "part-00001.parquet"
    data = torn.read_bytes()
    torn.write_bytes(data[: int(kept * len(data)) if 0 < kept < 1 else int(kept)])
    assert store.valid_parts("bin") == ["bin/part-00000.parquet"]
    with pytest.raises(TornPartError, match="part-00001"):
        list(store.read_rows("bin", Generation))


def test_damage_in_the_middle_of_a_part_is_an_error_that_names_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_part("part.parquet", Generation, generations(2000))
    damaged = bytearray((tmp_path / "part.parquet").read_bytes())
    damaged[40:400] = bytes(360)
    (tmp_path / "part.parquet").write_bytes(damaged)
    with pytest.raises(TornPartError, match=r"part\.parquet is not a whole"):
        list(store.read_rows(["part.parquet"], Generation))


def test_a_missing_part_is_not_called_torn(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        list(store.read_rows(["bin/part-00000.parquet"], Generation))


def test_a_part_of_an_older_record_says_so(store: Store) -> None:
    @dataclass(frozen=True)
    class Older:
        text_id: str
        text: str

    store.write_part("part.parquet", Older, [Older("a", "b")])
    with pytest.raises(TornPartError, match=r"written by another version: it has no .*finish_reason"):
        list(store.read_rows(["part.parquet"], Generation))

    @dataclass(frozen=True)
    class Newer(Older):
        more: tuple[str, ...] = ("as before",)

    assert list(store.read_rows(["part.parquet"], Newer)) == [Newer("a", "b")]


def test_parts_are_chosen_by_all_of_their_metadata(store: Store) -> None:
    for name, fingerprint in (("a", "old"), ("b", "new"), ("c", "new")):
        store.write_part(f"bin/{name}.parquet", Generation, generations(1), {"fingerprint": fingerprint, "bin": name})
    assert store.valid_parts("bin", fingerprint="new") == ["bin/b.parquet", "bin/c.parquet"]
    assert store.valid_parts("bin", fingerprint="new", bin="c") == ["bin/c.parquet"]
    assert store.valid_parts("bin", model="x") == []
    assert store.valid_parts("nowhere", fingerprint="new") == []
    assert store.part_metadata("bin/a.parquet") == {"fingerprint": "old", "bin": "a"}


def test_rows_stream_one_batch_at_a_time(store: Store) -> None:
    store.write_part("bin/part-00000.parquet", Generation, generations(10))
    store.write_bytes("bin/part-00001.parquet", b"torn")
    rows = store.read_rows("bin", Generation, batch_rows=4)
    assert [next(rows).text_id for _ in range(10)] == [f"t{i}" for i in range(10)]
    with pytest.raises(TornPartError):
        next(rows)


def test_the_writer_cuts_parts_and_drops_its_buffer_on_an_error(store: Store) -> None:
    with PartWriter(store, "bin", Generation, rows_per_part=4, metadata={"fingerprint": "f"}) as writer:
        for row in generations(10):
            writer.write(row)
    assert [len(list(store.read_rows([part], Generation))) for part in store.valid_parts("bin", fingerprint="f")] == [
        4,
        4,
        2,
    ]
    with contextlib.suppress(RuntimeError), PartWriter(store, "bin", Generation, 4, first=3) as writer:
        for row in generations(5):
            writer.write(row)
        raise RuntimeError("engine died")
    assert len(store.list("bin")) == 4
    assert len(list(store.read_rows("bin", Generation))) == 14


def test_a_writer_without_rows_writes_nothing(store: Store) -> None:
    with PartWriter(store, "bin", Generation):
        pass
    assert store.list("bin") == []


def test_a_manifest_is_strict_json_of_plain_numbers(store: Store) -> None:
    store.write_json(
        "manifest.json",
        {
            "rate": np.float32(0.5),
            "rows": np.int64(3),
            "nothing": math.nan,
            "forever": np.float64("inf"),
            "reasons": {"b", "a"},
            "day": NOON.date(),
            "verdict": JudgeVerdict.PASS,
            "text": "Tasse \ud83d groß",
            7: [np.bool_(True), (1, None)],
        },
    )
    assert store.read_json("manifest.json") == {
        "rate": 0.5,
        "rows": 3,
        "nothing": None,
        "forever": None,
        "reasons": ["a", "b"],
        "day": "2026-03-01",
        "verdict": "pass",
        "text": "Tasse \ud83d groß",
        "7": [True, [1, None]],
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_plain_values_stay_as_they_are(value: Any) -> None:
    assert plain_json(value) == value


def test_a_torn_manifest_is_an_error_and_a_missing_one_is_none(store: Store) -> None:
    store.write_bytes("manifest.json", b'{"rows": 1')
    with pytest.raises(TornPartError, match=r"manifest\.json is not JSON.*run its stage again"):
        store.read_json("manifest.json")
    assert store.read_json("other.json") is None


def test_removing_what_is_not_there_is_no_error(store: Store) -> None:
    store.write_part("bin/part.parquet", Generation, generations(1))
    store.remove("bin")
    store.remove("bin")
    assert store.list("bin") == []
