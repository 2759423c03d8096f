"""Is there an answer at all: emptiness, truncation, reasoning in place of an answer."""

from __future__ import annotations

from include.validation.registry import by_pattern, validator
from include.validation.repairs import OPEN_REASONING
from include.validation.view import View

# A text that stops here was cut: open punctuation, or a word that must be followed by another.
_OPEN_ENDS = frozenset(",;:([&/–—-")
_WORDS = (
    "and or the a an of with for to from by und oder mit für der die das et ou avec pour le la les de des du y con para el"
    " los las e il per en met voor het"
)
_OPEN_WORDS = frozenset(_WORDS.split())


@validator("truncated_reasoning", "empty_output", fatal=True)
def no_answer(view: View) -> list[str]:
    """With thinking on, the answer stands after `</think>`; without that tag there is no answer, whatever the text says.
    And nothing can be published where no letter or digit is left after repairs."""
    if not view.answered:
        return ["truncated_reasoning"]
    return [] if view.output[:1].isalnum() or any(map(str.isalnum, view.output)) else ["empty_output"]


@validator("truncated")
def truncated(view: View) -> bool:
    """The engine stopped at its token limit, or the text ends where no text ends and the source did not."""
    if view.finish_reason in ("length", "abort"):
        return True
    if view.task.field == "title":
        return False
    text = view.output
    if text[-1] not in _OPEN_ENDS and text.rsplit(None, 1)[-1].lstrip('("').lower() not in _OPEN_WORDS:
        return False
    return text[-24:] not in view.source.text


by_pattern(
    "reasoning_leak", r"<\[", OPEN_REASONING, "A reasoning tag, or a reasoning block with content, in the answer."
)
