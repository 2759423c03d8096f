"""The audit of a staging table finds the faults that are planted in it, and says which rule failed and what it saw."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
import sqlalchemy as sa

from include.warehouse.database import writing
from include.warehouse.load import LoadRefusedError, audit_staging
from include.warehouse.staging import LISTING, Staging
from tests.integration.warehouse_runs import DAY, TASK, moment

RUN = "run-1"


def staged(url: str) -> Staging:
    """Ten listings, staged without fault."""
    staging = Staging("copy", RUN, TASK, url)
    names = [*LISTING, *staging.columns]
    fixed = {"judge_score": None, "source_updated_at": moment(DAY), "run_id": RUN}
    rows = [{n: fixed.get(n, f"{n} {i}") for n in names} for i in range(10)]
    batch = pa.RecordBatch.from_pylist(rows)
    score = batch.schema.get_field_index("judge_score")
    batch = batch.set_column(score, "judge_score", batch["judge_score"].cast(pa.float64()))
    assert staging.fill(lambda: [batch], lambda row, error: pytest.fail(error)) == 0
    return staging


def test_a_staging_table_without_fault_passes(warehouse_url: str) -> None:
    staging = staged(warehouse_url)
    audit = audit_staging(staging, RUN, 10, warehouse_url)
    assert audit["status"] == "passed"
    required = {e["expected"]["column"] for e in audit["expectations"] if e["name"].endswith("to_not_be_null")}
    assert required == {*LISTING, *staging.columns} - {"judge_score"}


@pytest.mark.parametrize(
    ("fault", "rule", "told"),
    [
        ("DELETE FROM {t} WHERE listing_id = 'listing_id 3'", "expect_table_row_count_to_equal", "'observed': 9"),
        ("DELETE FROM {t}", "expect_table_row_count_to_equal", "'observed': 0"),
        ("UPDATE {t} SET merchant_id = 'm', listing_id = 'l' WHERE listing_id > 'listing_id 6'", "unexpected_rows_expectation", "'observed': 1"),
        ("UPDATE {t} SET content_hash = NULL WHERE listing_id = 'listing_id 3'", "expect_column_values_to_not_be_null", "'column': 'content_hash'"),
        ("UPDATE {t} SET text = NULL", "expect_column_values_to_not_be_null", "'rows': 10"),
        ("UPDATE {t} SET run_id = 'run-2' WHERE listing_id = 'listing_id 3'", "expect_column_values_to_be_in_set", "'examples': ['run-2']"),
    ],
    ids=["a row is missing", "all rows are missing", "twins", "a null", "nulls", "a row of another run"],
)  # fmt: skip
def test_a_planted_fault_is_refused_and_named(warehouse_url: str, fault: str, rule: str, told: str) -> None:
    staging = staged(warehouse_url)
    with writing(warehouse_url) as connection:
        connection.execute(sa.schema.DropIndex(staging._index))
        connection.execute(sa.text(fault.format(t=staging.table.name)))
    with pytest.raises(LoadRefusedError, match="failed its audit, nothing was published") as refused:
        audit_staging(staging, RUN, 10, warehouse_url)
    assert re.findall(r"'name': '(\w+)'", str(refused.value))[0] == rule
    assert told in str(refused.value)
