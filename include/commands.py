"""How every command line ends: with a status, and one line on stderr for what a person can mend."""

from __future__ import annotations

import argparse
import functools
import os
import sqlite3
import sys
from collections.abc import Callable
from typing import ParamSpec

from pydantic import ValidationError

P = ParamSpec("P")


def count(text: str) -> int:
    """An option's number of things, 1 or more."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("give 1 or more")
    return number


def command_line(main: Callable[P, int]) -> Callable[P, int]:
    """The command with status 2 and one line for an error, and silence when the reader of a pipe (`| head`) has gone.

    The project's own errors are ValueError and RuntimeError; any other kind is a fault of the program and keeps its trace.
    """

    @functools.wraps(main)
    def ended(*args: P.args, **kwargs: P.kwargs) -> int:
        status, error = 2, None  # type: int, Exception | None
        try:
            status = main(*args, **kwargs)
        except Exception as caught:
            if not isinstance(caught, (OSError, ValueError, RuntimeError, *_database_errors())):
                raise
            error = caught
        try:
            if sys.stdout:
                sys.stdout.flush()
        except OSError as full:  # the interpreter flushes once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status, error = 2, OSError(full.errno, full.strerror, "standard output")
        if isinstance(error, BrokenPipeError):
            return 141  # as a shell tells SIGPIPE
        if error is not None:
            print(f"error: {_told(error)}", file=sys.stderr)  # noqa: T201
        return status

    return ended


def _database_errors() -> tuple[type[Exception], ...]:
    """SQLAlchemy's only where a command has loaded it: a GPU host may lack it."""
    loaded = sys.modules.get("sqlalchemy.exc")
    return (sqlite3.Error, *([loaded.SQLAlchemyError] if loaded else []))


def _told(error: Exception) -> str:
    """What happened and what to do, in one line. Messages of this project say both; others are made to."""
    text, ours = str(error), type(error) in (ValueError, RuntimeError) or type(error).__module__.startswith("include.")
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        text = f"{error.title}, {'.'.join(map(str, first['loc']))}: {first['msg']}"
    elif isinstance(error, OSError) and not (ours := error.strerror is None):
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    elif isinstance(error, _database_errors()):
        text = f"the database refused: {getattr(error, 'orig', error)}; a missing table comes by `python -m include.warehouse migrate`"
    return " ".join(text.split()) + ("" if ours else "; mend that and run the command again, finished work is kept")
