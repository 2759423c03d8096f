"""Arrow batches into tables: COPY on PostgreSQL, executemany elsewhere. One poison row never fails its batch."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa

Poisoned = Callable[[pa.RecordBatch, str], None]


def _copy(connection: sa.Connection, table: sa.Table, batch: pa.RecordBatch) -> None:
    """PostgreSQL's COPY of CSV that Arrow writes: no Python object per value."""
    preparer = connection.dialect.identifier_preparer
    columns = ", ".join(preparer.quote(name) for name in batch.schema.names)
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(batch, buffer, pyarrow.csv.WriteOptions(include_header=False))
    driver = connection.connection.driver_connection
    assert driver is not None
    with driver.cursor() as cursor:
        statement = f"COPY {preparer.format_table(table)} ({columns}) FROM STDIN (FORMAT csv)"
        with cursor.copy(statement) as copy:
            copy.write(buffer.getbuffer())


def insert_batch(connection: sa.Connection, table: sa.Table, batch: pa.RecordBatch) -> None:
    """Inserts a batch whose column names are columns of the table. Raises what the driver raises, for the whole batch."""
    if not batch.num_rows:
        return
    if connection.dialect.name == "postgresql":
        _copy(connection, table, batch)
    else:
        connection.execute(table.insert(), batch.to_pylist())


def insert_isolating(connection: sa.Connection, table: sa.Table, batch: pa.RecordBatch, poisoned: Poisoned) -> int:
    """Inserts a batch; a row that the database refuses is found by halving and handed to `poisoned` with the reason.

    Returns the number of rows inserted. Errors that are not the data's fault are raised.
    """
    try:
        with connection.begin_nested():
            insert_batch(connection, table, batch)
        return int(batch.num_rows)
    except Exception as error:
        if not _is_data_error(error):
            raise
        if batch.num_rows == 1:
            poisoned(batch, str(getattr(error, "orig", error)).splitlines()[0])
            return 0
    half = batch.num_rows // 2
    return insert_isolating(connection, table, batch.slice(0, half), poisoned) + insert_isolating(
        connection, table, batch.slice(half), poisoned
    )


def _is_data_error(error: Exception) -> bool:
    """SQLSTATE classes 22 (data exception), 23 (constraint) and 54 (limit exceeded); encoding and overflow in the driver."""
    if isinstance(error, sa.exc.IntegrityError | sa.exc.DataError | UnicodeError | OverflowError | ValueError):
        return True
    state = getattr(getattr(error, "orig", error), "sqlstate", None) or ""
    return state[:2] in ("22", "23", "54")
