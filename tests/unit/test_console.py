"""The terminal shows tasks, our own lines and what went wrong; the log file keeps every byte."""

import io
from pathlib import Path

import pytest

from listing_operators.console import main, readable


def record(message: str, logger: str, level: str = "info", more: str = "loc=x.py:1") -> str:
    return f"2026-11-29T18:29:02.060511Z [{level:<9}] {message:<30} [{logger}] {more}"


def test_a_started_task_is_one_line_with_its_map_index() -> None:
    lines = [
        record("[DAG TEST] starting task_id=extract map_index=-1", "airflow.sdk.definitions.dag"),
        record("[DAG TEST] running task <TaskInstance: x>", "airflow.sdk.definitions.dag"),
        record("[DAG TEST] starting task_id=title.process_bin.generate map_index=3", "airflow.sdk.definitions.dag"),
    ]
    assert list(readable(lines)) == ["18:29:02 extract", "18:29:02 title.process_bin.generate [3]"]


def test_our_own_lines_lose_their_technical_tail() -> None:
    lines = [
        record("330 of 330 listings, 253/s", "include.extraction.run"),
        record("64 requests [5%]", "airflow.task.operators.listing_operators.gpu.GPUTaskOperator"),
        record("Task instance state updated", "airflow.api_fastapi.execution_api.routes.task_instances"),
    ]
    assert list(readable(lines)) == ["18:29:02   330 of 330 listings, 253/s", "18:29:02   64 requests [5%]"]


def test_of_a_traceback_what_was_raised_is_shown_and_the_frames_stay_in_the_log() -> None:
    lines = [
        record("Task failed with exception", "task", "error", "error_detail=[{'a': 'b [c] d=1'}] loc=x.py:1"),
        "Traceback (most recent call last):",
        '  File "airflow/sdk/x.py", line 1579, in _run',
        "    result = _execute_task(",
        "             ^^^^^^^^^^^^^^",
        "",
        "ValueError: broken [thing]",
        record("Task instance state updated", "airflow.api"),
        "its second line",
    ]
    assert list(readable(lines)) == ["18:29:02   ERROR Task failed with exception", "ValueError: broken [thing]"]


def test_deprecations_of_airflow_stay_in_the_log_even_over_several_lines() -> None:
    lines = [
        record("The attribute is deprecated.", "py.warnings", "warning"),
        "2026-11-29T18:28:45.551634Z [warning  ] Could not import graphviz.",
        "You might need to install it.",
        "Run `pip install graphviz`. [py.warnings] category=UserWarning loc=x.py:57",
        record("No tasks: {<x [None] id=1>, <y [up_for_retry] id=2>}", "airflow.sdk.definitions.dag", "warning"),
        record("something real", "airflow.jobs", "warning"),
    ]
    assert list(readable(lines)) == ["18:29:02   WARNING something real"]


def test_a_message_of_several_lines_is_shown_whole() -> None:
    lines = [
        "2026-11-29T18:29:02.0Z [info     ] Run of today: ok",
        "",
        "  extracted   330 [listing_operators.stages] loc=x",
    ]
    assert list(readable(lines)) == ["18:29:02   Run of today: ok\n\n  extracted   330"]


def test_what_is_no_record_is_shown() -> None:
    assert list(readable(["Dag 'x' could not be found", "DagRun failed"])) == [
        "Dag 'x' could not be found",
        "DagRun failed",
    ]


def test_a_record_cut_off_by_the_end_is_not_lost() -> None:
    assert list(readable(["2026-11-29T18:28:45.5Z [error    ] out of memo"])) == ["18:28:45   ERROR out of memo"]


def test_the_log_keeps_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = record("hidden", "airflow.api") + "\n" + record("shown", "include.x.y") + "\n"
    main(io.StringIO(text), tmp_path / "run" / "airflow.log")
    assert (tmp_path / "run" / "airflow.log").read_text() == text
    assert capsys.readouterr().out == "18:29:02   shown\n"
