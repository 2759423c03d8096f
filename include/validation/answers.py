"""Is there an answer at all: emptiness, truncation, reasoning in place of an answer."""

from __future__ import annotations

import re

from include.validation.registry import validator
from include.validation.repairs import OPEN_REASONING
from include.validation.view import View

# A text that stops here was cut: open punctuation, or a word that must be followed by another.
_DANGLING = re.compile(
    r"(?:[,;:(\[&/–—-]|(?<![\w'’])(?:and|or|the|a|an|of|with|for|to|from|by|und|oder|mit|für|der|die|das|et|ou|avec|pour|le|la|les"
    r"|de|des|du|y|con|para|el|los|las|e|il|per|en|met|voor|het))$",
    re.I,
)


@validator("truncated_reasoning", fatal=True)
def truncated_reasoning(view: View) -> bool:
    """With thinking on, the answer stands after `</think>`; without that tag there is no answer, whatever the text says."""
    return not view.answered


@validator("empty_output", fatal=True)
def empty_output(view: View) -> bool:
    """Nothing to publish: no letter, digit or symbol is left after repairs."""
    return not view.output


@validator("truncated")
def truncated(view: View) -> bool:
    """The engine stopped at its token limit, or the text ends where no text ends and the source did not."""
    if view.finish_reason in ("length", "abort"):
        return True
    if view.task.field == "title":
        return False
    tail = view.output[-24:]
    return (
        _DANGLING.search(tail) is not None
        and not view.source_text.rstrip().endswith(tail)
        and tail not in view.source_text
    )


@validator("reasoning_leak")
def reasoning_leak(view: View) -> bool:
    """A reasoning tag, or a reasoning block with content, in the answer."""
    return ("<" in view.chars or "[" in view.chars) and OPEN_REASONING.search(view.output) is not None
