"""The registry of validators: reason codes to pure functions, in order of severity.

A validator takes a View and answers whether its fault is there; one with several codes lists those that hold. It keeps no
state, reads thresholds from `view.settings` and runs in time linear in the text. The first reason of a rejected row is the
one that it is counted under; the package says in which order the modules register.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import regex

from include.validation.view import View

Check = Callable[[View], bool | Sequence[str]]


class Validator(NamedTuple):
    """`when`: a character of this class must be in the output for the fault to be possible; None: any text can have it.

    `fatal`: without a usable answer the other validators would only add noise. `flags`: codes that are noted and never reject.
    """

    codes: tuple[str, ...]
    check: Check
    when: regex.Pattern[str] | None = None
    fatal: bool = False
    flags: frozenset[str] = frozenset()


_VALIDATORS: list[Validator] = []


def validator(*codes: str, when: str = "", fatal: bool = False, flags: Sequence[str] = ()) -> Callable[[Check], Check]:
    """Registers a function under its reason codes; `when` is the inside of a character class of the `regex` package.

    Raises ValueError when a code is taken.
    """

    def register(check: Check) -> Check:
        taken = {code for known in _VALIDATORS for code in known.codes}.intersection(codes)
        if taken:
            raise ValueError(f"two validators share the reason code {min(taken)}")
        chars = regex.compile(f"[{when}]", regex.V1) if when else None
        _VALIDATORS.append(Validator(codes, check, chars, fatal, frozenset(flags)))
        return check

    return register


def by_pattern(code: str, when: str, pattern: re.Pattern[str] | regex.Pattern[str] | None, doc: str) -> None:
    """Registers a validator that is one search in the output; without a pattern the characters `when` are the fault."""

    def check(view: View) -> bool:
        return pattern is None or pattern.search(view.output) is not None

    check.__doc__ = doc
    validator(code, when=when)(check)


def registered() -> list[Validator]:
    """Every validator, in order of severity."""
    return _VALIDATORS


def validators() -> dict[str, Validator]:
    """Every validator by reason code, in order of severity."""
    return {code: one for one in registered() for code in one.codes}
