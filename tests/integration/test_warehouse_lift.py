"""The click-through query as the documentation has it, on each kind of database, against the same sums made another way."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from include.records import EndedCopy
from include.warehouse.database import writing
from include.warehouse.load import load
from tests.integration.warehouse_runs import DAY, TASK, finished_run, moment, refusal, rows, verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "warehouse.md"
(QUERY,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
LATER = datetime(2026, 3, 9, tzinfo=UTC)


def ended(listing_id, reason):
    return EndedCopy(merchant_id="m1", listing_id=listing_id, locale="", source_updated_at=LATER, reason=reason)


def publish_arms(folder, url, treated, refused, held):
    """A first night, and a second one that replaces nothing, retires one treated listing and refuses a published one."""
    first = finished_run(
        folder, [verdict(k, "copy") for k in treated], refused=[refusal(k) for k in refused],
        ended=[ended(k, "holdout") for k in held],
    )  # fmt: skip
    load(first, TASK, warehouse_url=url)
    second = finished_run(
        folder, run_id="run-2", extracted_at=LATER, refused=[refusal(treated[0], "other")], ended=[ended(treated[1], "retired")]
    )  # fmt: skip
    load(second, TASK, warehouse_url=url)


def write_clicks(url, clicks):
    with writing(url) as connection:
        connection.exec_driver_sql(
            "CREATE TABLE clicks (merchant_id text, listing_id text, impressions int, clicks int)"
        )
        insert = sa.text("INSERT INTO clicks VALUES ('m1', :k, :i, :c)")
        connection.execute(insert, [{"k": k, "i": i, "c": c} for k, days in clicks.items() for i, c in days])


def rate(clicks, keys):
    """Click-through rate of an arm and its variance, a listing being one draw."""
    shown, clicked = np.array([np.sum(clicks[key], axis=0) for key in keys], float).T
    ctr = clicked.sum() / shown.sum()
    return ctr, np.var(clicked - ctr * shown, ddof=1) * len(keys) / shown.sum() ** 2


def test_lift_with_its_interval(warehouse_url, tmp_path):
    treated, refused, held = ([f"{arm}{i}" for i in range(n)] for arm, n in (("t", 150), ("q", 20), ("h", 80)))
    publish_arms(tmp_path, warehouse_url, treated, refused, held)
    chance, clicks = random.Random(3), {}
    for key in treated + refused + held:  # two days a listing, the holdout a sixth below
        views = [chance.randint(50, 500) for _ in range(2)]
        clicks[key] = [(n, sum(chance.random() < (0.05 if key in held else 0.06) for _ in range(n))) for n in views]
    write_clicks(warehouse_url, clicks)
    with writing(warehouse_url) as connection:  # a listing that was never assigned counts nowhere
        connection.execute(sa.text("INSERT INTO clicks VALUES ('m2', 't0', 1000, 900)"))
    ((treatment, holdout, lift, low, high),) = rows(warehouse_url, QUERY)
    (rate_t, var_t), (rate_h, var_h) = rate(clicks, treated + refused), rate(clicks, held)
    half = 1.96 * np.sqrt(var_t / rate_h**2 + rate_t**2 * var_h / rate_h**4)
    ratio = rate_t / rate_h
    assert (treatment, holdout, lift) == pytest.approx((rate_t, rate_h, ratio - 1))
    assert (low, high) == pytest.approx((ratio - 1 - half, ratio - 1 + half))
    assert low < 0.2 < high


def test_lift_by_hand(warehouse_url, tmp_path):
    """Two listings an arm: 10 and 20 clicks of 100 views against 10 and 10; the holdout does not vary."""
    publish_arms(tmp_path, warehouse_url, ["t0", "t1"], [], ["h0", "h1"])
    write_clicks(warehouse_url, {"t0": [(100, 10)], "t1": [(100, 20)], "h0": [(100, 10)], "h1": [(60, 6), (40, 4)]})
    # The rates are 0.15 and 0.10; residuals -5 and 5: variance (25 + 25) * 2 / 1 / 200**2 = 0.0025, over 0.10**2 is 0.25.
    assert rows(warehouse_url, QUERY) == [pytest.approx((0.15, 0.10, 0.5, 0.5 - 0.98, 0.5 + 0.98))]


def test_without_a_holdout_there_is_no_answer(warehouse_url, tmp_path):
    load(finished_run(tmp_path, [verdict("t0", "copy", updated=moment(DAY))]), TASK, warehouse_url=warehouse_url)
    write_clicks(warehouse_url, {"t0": [(100, 10)]})
    assert rows(warehouse_url, QUERY) == []
