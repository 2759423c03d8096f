"""Merchant feeds: formats, encodings, headers and breaks, as merchants write them."""

from __future__ import annotations

import gzip
import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from include.extraction.feeds import FeedReport, find_feeds, read_feed
from include.extraction.listings import FIELDS, RowError, to_listing
from include.runs import RunSpec, interval_of
from include.settings import FeedSettings, load_settings
from tests.integration.warehouse_runs import DAY

START, END = interval_of(DAY)
RSS = """<?xml version="1.0" encoding="{encoding}"?>
<rss version="2.0" xmlns:g="http://base.google.com/ns/1.0"><channel><title>Shop</title>
{items}
</channel></rss>"""


def spec(**changes):
    return RunSpec(
        run_id="r", partition_date=DAY, interval_start=START, interval_end=END, enhancement_tasks=("title",),
        settings=load_settings(), **changes,
    )  # fmt: skip


def read(path, content, written=START + timedelta(hours=3), batch_rows=100, **feed):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (written.timestamp(), written.timestamp()))
    settings = FeedSettings(url=str(path), **({"merchant_id": "acme"} | feed))
    (file,) = find_feeds([settings], spec())
    report = FeedReport(file.url, file.merchant_id)
    rows, errors = [], []
    for batch in read_feed(file, spec(), batch_rows, report):
        for row in batch:
            if isinstance(row, RowError):
                errors.append(row)
            else:
                rows.append(dict(zip(FIELDS, row, strict=True)))
    return rows, errors, report


def titles(rows):
    return [row["title"] for row in rows]


def test_tsv_with_inch_marks_quotes_and_google_names(tmp_path):
    content = 'id\tTitle\tdescription\tgoogle product category\tcolor\tlink\n1\t12" plate\tA "big" one\tKitchen\tblue\thttps://x\n2\t"A ""quoted"" mug"\t\t\t\t\n'
    rows, errors, report = read(tmp_path / "feed.txt", content)
    assert titles(rows) == ['12" plate', 'A "quoted" mug']
    assert rows[0]["category"] == "Kitchen"
    assert rows[0]["attributes"] == {"color": "blue"}
    assert (errors, report.status, report.rows, report.encoding) == ([], "read", 2, "utf-8")


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
def test_csv_of_any_delimiter_with_line_breaks_in_quotes(tmp_path, delimiter):
    lines = [delimiter.join(['"ID"', "title", "description"]), delimiter.join(["7", '"Mug, 350 ml;\n blue | x"', "d"])]
    rows, _, report = read(tmp_path / "feed.csv", "\ufeff" + "\r\n".join(lines) + "\r\n")
    assert titles(rows) == ["Mug, 350 ml;\n blue | x"]
    assert report.encoding == "utf-8-sig"


def test_rows_of_another_width_are_refused_alone(tmp_path):
    rows, errors, _ = read(tmp_path / "feed.tsv", "id\ttitle\n1\tMug\n2\n3\tCup\textra\n4\tPot\t\t\n")
    assert titles(rows) == ["Mug", "Pot"]
    assert [(e.reason, e.merchant_id, e.listing_id.rsplit(":")[-1]) for e in errors] == [
        ("wrong_column_count", "acme", "row-3"),
        ("wrong_column_count", "acme", "row-4"),
    ]


def test_rss_with_and_without_namespace_entities_and_bare_ampersands(tmp_path):
    items = """
    <item><g:id>1</g:id><title><![CDATA[<b>R&D</b> mug & saucer]]></title><g:color>red</g:color>
      <g:shipping><g:country>DE</g:country></g:shipping><g:product_highlight>a</g:product_highlight><g:product_highlight>b</g:product_highlight></item>
    <item><id>2</id><title>Salt & Pepper&nbsp;set &eacute; &#233; &lt;b&gt;</title><description>x\x0by&#0;</description></item>"""
    content = RSS.format(encoding="utf-8", items=items).replace(' xmlns:g="http://base.google.com/ns/1.0"', "")
    rows, errors, report = read(tmp_path / "feed.xml", content)
    assert titles(rows) == ["<b>R&D</b> mug & saucer", "Salt & Pepper\xa0set é é <b>"]
    assert rows[0]["attributes"] == {"color": "red", "product_highlight": "a; b"}
    assert rows[1]["description"] == "xy"
    assert not errors
    assert report.repairs == {"ampersands": 3, "illegal_characters": 2, "undecodable_bytes": 0}


def test_atom_entries(tmp_path):
    content = (
        '<feed xmlns="http://www.w3.org/2005/Atom" xmlns:g="x"><entry><g:id>1</g:id><title>Mug</title></entry></feed>'
    )
    rows, _, _ = read(tmp_path / "feed.xml", content)
    assert titles(rows) == ["Mug"]


def test_entity_bombs_are_not_expanded(tmp_path):
    bomb = '<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol2 "&lol;&lol;&lol;">]>'
    items = "<item><g:id>1</g:id><title>&lol2; mug</title></item>"
    content = RSS.format(encoding="utf-8", items=items).replace("<rss", bomb + "<rss")
    rows, _, report = read(tmp_path / "feed.xml", content)
    assert titles(rows) == ["&lol2; mug"], report


def test_jsonl_skips_what_is_no_object(tmp_path):
    lines = [json.dumps({"id": 1, "title": "Mug\u2028new line"}, ensure_ascii=False), "{broken", "[1]", "", json.dumps({"title": "no id"}),
             json.dumps({"sku": "a", "name": "Cup \ud83d", "attributes": {"Color": "red"}})]  # fmt: skip
    rows, errors, report = read(tmp_path / "feed.jsonl", "\n".join(lines))
    assert titles(rows) == ["Mug\u2028new line", "Cup \ud83d"]
    assert [e.reason for e in errors] == ["bad_json", "bad_json", "missing_id"]
    assert report.status == "read"


@pytest.mark.parametrize(
    ("encoding", "declared", "found"),
    [
        ("cp1252", "UTF-8", "cp1252"),  # the merchant says one thing and writes another
        ("iso-8859-1", "ISO-8859-1", "cp1252"),
        ("utf-16", "utf-16", "utf-16"),
        ("utf-8", "ISO-8859-1", "utf-8"),
        ("cp1251", "windows-1251", "cp1251"),
    ],
)
def test_encodings_of_xml(tmp_path, encoding, declared, found):
    title = "Синяя кружка" if encoding == "cp1251" else "Größe “35” – Krüge für Gäste"
    if encoding == "iso-8859-1":
        title = "Krüge für Gäste"
    items = "".join(f"<item><g:id>{i}</g:id><title>{title} {i}</title></item>" for i in range(20))
    rows, _, report = read(tmp_path / "feed.xml", RSS.format(encoding=declared, items=items).encode(encoding))
    assert titles(rows) == [f"{title} {i}" for i in range(20)]
    assert report.encoding == found


def test_encoding_by_guess_and_by_order(tmp_path):
    content = "id;title\n" + "".join(f"{i};Größere Bettwäsche für Gäste – Überwurf {i}\n" for i in range(50))
    rows, _, _ = read(tmp_path / "feed.csv", content.encode("cp1252"))
    assert titles(rows)[3] == "Größere Bettwäsche für Gäste – Überwurf 3"
    rows, _, report = read(tmp_path / "feed.csv", "id;title\n1;Kružka čaj\n".encode("cp1250"), encoding="cp1250")
    assert (titles(rows), report.encoding) == (["Kružka čaj"], "cp1250")


def test_a_byte_that_is_not_utf8_costs_its_row_only(tmp_path):
    good = "".join(f"{i}\tKrüge {i}\n" for i in range(20_000))  # past the sample that the encoding is told from
    rows, _, report = read(
        tmp_path / "feed.tsv", ("id\ttitle\n" + good).encode() + b"bad\tGr\xf6\xdfe\n", batch_rows=5_000
    )
    assert report.encoding == "utf-8"
    assert len(rows) == 20_001
    from collections import Counter

    with pytest.raises(RowError) as error:
        to_listing(list(rows[-1].values()), absent_time=START, default_locale="en-US", seen=Counter())
    assert error.value.reason == "lone_surrogate"


def test_gzip_by_content_and_a_cut_file(tmp_path):
    text = "id\ttitle\n" + "".join(f"{i}\tMug {i} {os.urandom(8).hex()}\n" for i in range(5_000))
    packed = gzip.compress(text.encode())
    rows, _, report = read(tmp_path / "feed.tsv", packed)
    assert (len(rows), report.status) == (5_000, "read")
    rows, _, report = read(tmp_path / "feed.tsv.gz", packed[: len(packed) // 2], batch_rows=300)
    assert report.status == "broken"
    assert 1_000 < len(rows) == report.rows < 4_000


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("feed.tsv", "sku code\tname\n1\tMug\n", r"after 0 rows: its header lacks \['listing_id'\]; it has \['sku code', 'name'\]"),
        ("feed.csv", "", "it is empty"),
        ("feed.xml", "<rss><channel><item><id>1</id><title>Mug</title></item><item>", "after 1 rows: no element found|unclosed"),
        ("feed.tsv", "id\ttitle\n1\tMug\n", "unknown encoding"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_reported(tmp_path, name, content, problem):
    import re

    more = {"encoding": "latin-99"} if "encoding" in problem else {}
    _, _, report = read(tmp_path / name, content, **more)
    assert report.status == "broken"
    assert re.search(problem, report.problem)


def test_own_column_names(tmp_path):
    rows, _, _ = read(
        tmp_path / "feed.csv", "Artikel-Nr,Bezeichnung,Text\n1,Becher,blau\n",
        columns={"listing_id": "Artikel-Nr", "title": "Bezeichnung", "description": "Text"}, locale="de-DE",
    )  # fmt: skip
    assert (rows[0]["listing_id"], rows[0]["title"], rows[0]["description"], rows[0]["locale"]) == (
        "1",
        "Becher",
        "blau",
        "de-DE",
    )


def test_versions_of_rows_without_times(tmp_path):
    content = "id\ttitle\tlast_modified\n1\tMug\t\n2\tCup\t2026-03-01\n"
    rows, _, _ = read(tmp_path / "feed.tsv", content, written=START + timedelta(hours=3))
    assert [row["source_updated_at"] for row in rows] == [START + timedelta(hours=3), "2026-03-01"]
    rows, _, _ = read(tmp_path / "feed.tsv", content, written=END + timedelta(hours=2))  # delivered after midnight
    assert rows[0]["source_updated_at"] == END - timedelta(microseconds=1)
    rows, _, _ = read(tmp_path / "feed.tsv", content, written=END + timedelta(days=9))  # a backfill: out of reach
    assert rows[0]["source_updated_at"] == END + timedelta(days=9)


def test_files_by_merchant_and_date(tmp_path):
    for merchant in ("acme", "b-shop"):
        for day in ("2026-03-06", "2026-03-07"):
            (tmp_path / merchant).mkdir(exist_ok=True)
            (tmp_path / merchant / f"{day}.tsv").write_text(f"id\ttitle\n1\tMug of {day}\n")
    settings = FeedSettings(url=str(tmp_path / "{merchant}" / "{date}.tsv"))
    files = find_feeds([settings], spec())
    assert [(f.merchant_id, f.snapshot) for f in files] == [("acme", True), ("b-shop", True)]
    assert [f.merchant_id for f in find_feeds([settings], spec(merchants=("b-shop",)))] == ["b-shop"]
    report = FeedReport(files[0].url, "acme")
    ((row,),) = read_feed(files[0], spec(), 10, report)
    assert row[2] == "Mug of 2026-03-06"
    assert row[8] == END - timedelta(microseconds=1)


def test_a_missing_file_is_reported(tmp_path):
    (file,) = find_feeds([FeedSettings(url=str(tmp_path / "none.tsv"), merchant_id="acme")], spec())
    report = FeedReport(file.url, file.merchant_id)
    assert list(read_feed(file, spec(), 10, report)) == []
    assert report.status == "missing"


def test_feeds_in_an_object_store():
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe_file("/feeds/acme/products.tsv", b"id\ttitle\n1\tMug\n")
    files = find_feeds([FeedSettings(url="memory://feeds/{merchant}/products.tsv")], spec())
    assert [f.merchant_id for f in files] == ["acme"]
    report = FeedReport(files[0].url, "acme")
    rows = [row for batch in read_feed(files[0], spec(), 10, report) for row in batch]
    assert rows[0][:3] == ["acme", "1", "Mug"]
    assert isinstance(rows[0][8], datetime)
    assert rows[0][8].tzinfo in (UTC, rows[0][8].tzinfo)
