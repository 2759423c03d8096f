"""Great Expectations behind plain functions; the only importer of great_expectations.

The library takes seconds to import, so it is imported when a check runs. Two habits of it are made safe here once for
all: its column rules skip nulls and hold on empty tables, so every column rule is paired with a not-null rule and every
table must have rows; and an error inside a rule reads as a failed rule, so errors are told apart as "broken".
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from include.partitions import Store, plain_json

EXAMPLES = 5  # failing values kept per rule; the quarantine holds them all
_SKIPS_NULLS = (
    "ExpectColumnValues",
    "ExpectColumnValueLengths",
    "ExpectColumnMean",
    "ExpectColumnSum",
    "ExpectColumnM",
)


class Rule(NamedTuple):
    """One expectation: a name for people, the library's class and its arguments."""

    name: str
    kind: str  # such as "ExpectColumnValuesToBeBetween"
    arguments: Mapping[str, Any]


class TableRules(NamedTuple):
    """A small table held in memory and the rules it must meet. `label` names the column that tells failing rows apart."""

    columns: Mapping[str, Sequence[object]]
    rules: Sequence[Rule]
    label: str | None = None


def _context() -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # before the import: it opens connections otherwise
    import great_expectations as gx

    logging.getLogger("great_expectations").setLevel(logging.WARNING)  # it tells of every class that it registers

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    return context


def _exceptions(info: Mapping[str, Any]) -> list[str]:
    """Messages of what was raised: the library gives one description, or one by metric."""
    if "raised_exception" in info:
        return [str(info["exception_message"])] if info["raised_exception"] else []
    return [message for part in info.values() if isinstance(part, Mapping) for message in _exceptions(part)]


def _entry(result: Any, table: str | None, label: str | None) -> dict[str, Any]:
    """One expectation's result as plain JSON of bounded size, with its first error."""
    found, config = result.result, result.expectation_config
    observed = found.get("observed_value", found.get("unexpected_count"))
    success = bool(result.success)
    if found.get("element_count") == 0:
        success = False  # true of nothing
    bad = found.get("partial_unexpected_list") or []
    if not success and bad:
        names = [index.get(label) for index in found.get("partial_unexpected_index_list") or []] if label else []
        observed = [f"{n}: {v}" for n, v in zip(names, bad, strict=False)] if names else bad
        one = found.get("element_count") == 1  # a table of one row: its figure says all
        observed = observed[0] if one else {"rows": found.get("unexpected_count"), "examples": observed[:EXAMPLES]}
    arguments = {k: v for k, v in config.kwargs.items() if k not in ("batch_id", "unexpected_rows_query")}
    entry = {
        "name": (config.meta or {}).get("rule", config.type),
        "success": success,
        "observed": plain_json(observed),
        "expected": plain_json(arguments),
    }
    if table:
        entry["table"] = table
    if problems := _exceptions(result.exception_info or {}):
        entry["error"] = problems[0]
    return entry


def expected_text(entry: Mapping[str, Any]) -> str:
    """What an expectation of a result asks for, in words: "at least 0.9", "0 to 0.02"; "as named" where its name says all."""
    asked = {k: v for k, v in entry["expected"].items() if v is not None and not k.startswith("column")}
    low, high = asked.get("min_value"), asked.get("max_value")
    if low is None and high is None:
        return ", ".join(f"{name} {value}" for name, value in asked.items()) or "as named"
    if low is not None and high is not None:
        return f"{low}" if low == high else f"{low} to {high}"
    return f"at most {high}" if low is None else f"at least {low}"


def observed_text(entry: Mapping[str, Any]) -> str:
    """What an expectation of a result found, in words: a figure, how many rows do not meet it and which, or an error."""
    if "error" in entry:
        return f"an error, {entry['error']}"
    found = entry["observed"]
    if not isinstance(found, Mapping) or "examples" not in found:
        return str(found)
    return f"{found['rows']} wrong, such as {'; '.join(str(example) for example in found['examples'])}"


def _status(found: Sequence[Mapping[str, Any]], wanted: int) -> str:
    """ "broken" when nothing was checked, a rule went unanswered or raised; else whether every rule holds."""
    if not found or len(found) < wanted or any("error" in entry for entry in found):
        return "broken"
    return "passed" if all(entry["success"] for entry in found) else "failed"


def _rules_of(table: TableRules) -> list[Rule]:
    """The table's rules, the not-null rules that make them say something, and that there are rows."""
    rules = [Rule("has rows", "ExpectTableRowCountToBeBetween", {"min_value": 1}), *table.rules]
    guarded = {r.arguments["column"] for r in table.rules if r.kind == "ExpectColumnValuesToNotBeNull"}
    for rule in table.rules:
        columns = [rule.arguments[k] for k in ("column", "column_A", "column_B") if k in rule.arguments]
        for column in columns:
            if column not in guarded and (rule.kind.startswith(_SKIPS_NULLS) or "Pair" in rule.kind):
                guarded.add(column)
                rules.append(Rule(f"{column} is not null", "ExpectColumnValuesToNotBeNull", {"column": column}))
    return rules


def check_tables(
    name: str, version: str, tables: Mapping[str, TableRules], *, docs: tuple[Store, str] | None = None
) -> dict[str, Any]:
    """Runs one suite per table as a checkpoint and returns plain JSON.

    `docs` is a store and the folder in it that gets the Data Docs: a page to open, and the library's own results as
    JSON. The result: {"status": "passed" | "failed" | "broken", "suite", "version", "expectations": [{name, success,
    observed, expected, table}, …]} and, for a broken check, "error". Never raises for what it is given to check.
    """
    try:
        found, wanted = _checkpoint(name, version, tables, docs)
    except Exception as error:  # a gate that cannot answer must say so, not take the run down with it
        return {
            "status": "broken",
            "suite": name,
            "version": version,
            "expectations": [],
            "error": f"{type(error).__name__}: {error}",
        }
    status = _status(found, wanted)
    result: dict[str, Any] = {"status": status, "suite": name, "version": version, "expectations": found}
    if status == "broken":
        errors = [f"{e['name']}: {e['error']}" for e in found if "error" in e]
        result["error"] = errors[0] if errors else "the suite has no expectations, or some gave no result"
    return result


def _checkpoint(
    name: str, version: str, tables: Mapping[str, TableRules], docs: tuple[Store, str] | None
) -> tuple[list[dict[str, Any]], int]:
    context = _context()
    import great_expectations as gx
    import pandas as pd
    from great_expectations import expectations

    source = context.data_sources.add_pandas("aggregates")
    checks, wanted = list[tuple[Any, str, Any, str | None]](), 0
    for table, content in tables.items():
        if not content.rules:
            continue
        rules = _rules_of(content)
        wanted += len(rules)
        suite = context.suites.add(
            gx.ExpectationSuite(
                f"{name}-{table}",
                expectations=[getattr(expectations, r.kind)(**r.arguments, meta={"rule": r.name}) for r in rules],
                meta={"version": version},
            )
        )
        batch = source.add_dataframe_asset(table).add_batch_definition_whole_dataframe(table)
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(name=f"{name}-{table}", data=batch, suite=suite)
        )
        checks.append((definition, table, pd.DataFrame(dict(content.columns)), content.label))
    if not checks:
        return [], 0
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="data-docs-") as folder:
        if docs is not None:
            _add_site(context, folder)
        for definition, table, frame, label in checks:
            checkpoint = context.checkpoints.add(
                gx.Checkpoint(
                    name=definition.name,
                    validation_definitions=[definition],
                    result_format={
                        "result_format": "SUMMARY",
                        "partial_unexpected_count": EXAMPLES,
                        **({"unexpected_index_column_names": [label]} if label else {}),
                    },
                )
            )
            outcome = checkpoint.run(batch_parameters={"dataframe": frame})
            for validation in outcome.run_results.values():
                found.extend(_entry(result, table, label) for result in validation.results)
        if docs is not None:
            context.build_data_docs()
            _copy(Path(folder), *docs)
    return found, wanted


def _add_site(context: Any, folder: str) -> None:
    context.add_data_docs_site(
        site_name="docs",
        site_config={
            "class_name": "SiteBuilder",
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": folder},
        },
    )


def _copy(folder: Path, store: Store, target: str) -> None:
    store.remove(target)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        store.write_bytes(f"{target}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def audit_table(
    url: str,
    table: str,
    *,
    rows: int,
    key: Sequence[str],
    required: Sequence[str],
    constants: Mapping[str, str],
) -> dict[str, Any]:
    """Checks a database table in SQL: row count, distinct keys, no nulls in `required`, and columns of one value.

    `url` names the driver, too, as `include.warehouse.database.normalise_url` makes it.

    Returns {"status": "passed" | "failed" | "broken", "expectations": [{name, success, observed, expected}, …]}; what was
    observed stands there only where a rule failed.
    """
    context = _context()
    from great_expectations import expectations

    gxe: Any = expectations  # its names are not declared as exported
    source = context.data_sources.add_sql("warehouse", connection_string=url)
    try:
        batch = source.add_table_asset(table, table_name=table).add_batch_definition_whole_table("all").get_batch()
        columns = ", ".join(key)
        twins = f"SELECT {columns}, count(*) AS n FROM {{batch}} GROUP BY {columns} HAVING count(*) > 1"  # noqa: S608
        wanted = [
            gxe.ExpectTableRowCountToEqual(value=rows),
            gxe.UnexpectedRowsExpectation(unexpected_rows_query=twins, description="keys are distinct"),
            *(gxe.ExpectColumnValuesToNotBeNull(column=column) for column in required),
            *(gxe.ExpectColumnValuesToBeInSet(column=c, value_set=[value]) for c, value in constants.items()),
        ]
        outcome = _outcome(batch, wanted, "BOOLEAN_ONLY")  # counts in one scan; BASIC scans once more for every rule
        return outcome if outcome["status"] == "passed" else _outcome(batch, wanted, "BASIC")
    finally:
        source.get_execution_engine().close()


def _outcome(batch: Any, wanted: Iterable[Any], result_format: str) -> dict[str, Any]:
    """Validates one batch of a database."""
    import great_expectations as gx

    suite = gx.ExpectationSuite("audit", expectations=list(wanted))
    found = [_entry(result, None, None) for result in batch.validate(suite, result_format=result_format).results]
    return {"status": _status(found, len(suite.expectations)), "expectations": found}
