"""The registry of validators: reason code to pure function, in order of severity.

A validator takes a View and answers whether the fault is there. It holds no state, reads thresholds from `view.settings`
and runs in time linear in the text. The first reason of a rejected row is the one that it is counted under, so modules
are listed in `MODULES` from "no usable answer" to matters of style.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from include.validation.view import View

Check = Callable[[View], bool]
MODULES = ("answers", "characters", "leaks", "injection", "markup", "repetition", "languages", "facts", "lengths")


class Validator(NamedTuple):
    """`fatal`: without a usable answer the other validators would only add noise. `flag`: noted, never rejects.

    `exotic` can only be true of texts with characters beyond Latin letters and usual punctuation (`View.exotic`), `markup`
    only of texts with a line break or a character of Markdown, HTML or templates (`View.markup`): most texts spare them.
    """

    code: str
    check: Check
    fatal: bool = False
    flag: bool = False
    exotic: bool = False
    markup: bool = False


_REGISTRY: dict[str, Validator] = {}


def validator(
    code: str, *, fatal: bool = False, flag: bool = False, exotic: bool = False, markup: bool = False
) -> Callable[[Check], Check]:
    """Registers a function under a reason code. Raises ValueError when the code is taken."""

    def register(check: Check) -> Check:
        if code in _REGISTRY:
            raise ValueError(f"two validators share the reason code {code}")
        _REGISTRY[code] = Validator(code, check, fatal, flag, exotic, markup)
        return check

    return register


def validators() -> dict[str, Validator]:
    """Every validator by reason code, in order of severity."""
    for name in MODULES:
        import_module(f"include.validation.{name}")
    return _REGISTRY
