"""Arrow batches into tables: COPY on PostgreSQL, executemany elsewhere. One poison row never fails its batch."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa
import pyarrow.csv
import sqlalchemy as sa

AHEAD = 2  # batches that are being written as CSV while the server takes the one before them
Poisoned = Callable[[pa.RecordBatch, str], None]


def _as_csv(batch: pa.RecordBatch) -> memoryview:
    """CSV that Arrow writes: no Python object per value."""
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(batch, buffer, pyarrow.csv.WriteOptions(include_header=False))
    return buffer.getbuffer()


def _ahead(batches: Iterable[pa.RecordBatch]) -> Generator[memoryview, None, None]:
    """The batches as CSV; threads write what comes next while the caller sends a block and reads on."""
    with ThreadPoolExecutor(AHEAD) as threads:
        coming: deque[Future[memoryview]] = deque()
        for batch in batches:
            coming.append(threads.submit(_as_csv, batch))
            if len(coming) > AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _copy(
    connection: sa.Connection, table: sa.Table, names: Sequence[str], blocks: Iterable[memoryview], options: str = ""
) -> int:
    """PostgreSQL's COPY of blocks of CSV with these columns. Returns the rows copied."""
    preparer = connection.dialect.identifier_preparer
    columns = ", ".join(preparer.quote(name) for name in names)
    driver = connection.connection.driver_connection
    assert driver is not None
    with driver.cursor() as cursor:
        with cursor.copy(f"COPY {preparer.format_table(table)} ({columns}) FROM STDIN (FORMAT csv{options})") as copy:
            for block in blocks:
                copy.write(block)
        return int(cursor.rowcount)


def insert_batch(connection: sa.Connection, table: sa.Table, batch: pa.RecordBatch) -> None:
    """Inserts a batch whose column names are columns of the table. Raises what the driver raises, for the whole batch."""
    if not batch.num_rows:
        return
    if connection.dialect.name == "postgresql":
        _copy(connection, table, batch.schema.names, [_as_csv(batch)])
    else:
        connection.execute(table.insert(), batch.to_pylist())


def fill_new(connection: sa.Connection, table: sa.Table, batches: Iterable[pa.RecordBatch]) -> int:
    """Inserts batches that hold every column of a table created in this transaction, outside of savepoints.

    Returns the number of rows. Raises what the driver raises, for all of them.
    """
    if connection.dialect.name != "postgresql":
        rows = 0
        for batch in batches:
            insert_batch(connection, table, batch)
            rows += batch.num_rows
        return rows
    names = table.columns.keys()
    with closing(_ahead(batch.select(names) for batch in batches)) as blocks:
        # FREEZE: whoever reads the rows first need not mark every page, and so write it, once more.
        return _copy(connection, table, names, blocks, ", FREEZE")


def insert_isolating(connection: sa.Connection, table: sa.Table, batch: pa.RecordBatch, poisoned: Poisoned) -> int:
    """Inserts a batch; a row that the database refuses is found by halving and handed to `poisoned` with the reason.

    Returns the number of rows inserted. Errors that are not the data's fault are raised.
    """
    try:
        with connection.begin_nested():
            insert_batch(connection, table, batch)
        return int(batch.num_rows)
    except Exception as error:
        if not is_data_error(error):
            raise
        if batch.num_rows == 1:
            poisoned(batch, str(getattr(error, "orig", error)).splitlines()[0])
            return 0
    half = batch.num_rows // 2
    return insert_isolating(connection, table, batch.slice(0, half), poisoned) + insert_isolating(
        connection, table, batch.slice(half), poisoned
    )


def is_data_error(error: Exception) -> bool:
    """SQLSTATE classes 22 (data exception), 23 (constraint) and 54 (limit exceeded); encoding and overflow in the driver."""
    if isinstance(error, sa.exc.IntegrityError | sa.exc.DataError | UnicodeError | OverflowError | ValueError):
        return True
    state = getattr(getattr(error, "orig", error), "sqlstate", None) or ""
    return state[:2] in ("22", "23", "54")
