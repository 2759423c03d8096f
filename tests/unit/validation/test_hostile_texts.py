"""Texts made to cost time: every validator, repair and counter stays linear in the length of what it is given."""

import time
from collections.abc import Callable

import pytest

from include.validation.characters import count_emoji, without_invisible
from include.validation.checker import Checker
from include.validation.counting import count_sentences, count_words, is_unspaced
from include.validation.registry import registered
from include.validation.repairs import repair, unquote
from include.validation.repetition import has_loop, repeated_ngram_ratio
from include.validation.view import Source, View, nfc
from tests.validating import settings_with

SHORT, LONG = 20_000, 200_000  # characters
LONG_SOURCES = 60_000, 240_000  # beyond them a table of the source's numbers replaces searches in it
SECONDS = 2.5  # for one function and the long text
SLACK = 0.05  # seconds; below it the clock says little

TEXTS = {
    "punctuation": "!?.,;:-",
    "dashes": "-",
    "spaces": "a" + " " * 999,
    "digits": "1",
    "grouped digits": "1,234.567 ",
    "fractions": "1/2 1",
    "sizes": "12x",
    "measures": "5 cm 6 in 7 kg ",
    "codes": "A1-",
    "syllables": "ab",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "marks": "\u0301",
    "marks out of order": "\u0301\u0323",
    "Han": "\u8fd9\u4e2a\u676f\u5b50",
    "mixed scripts": "a\u0430\u03b1\u5b50",
    "emphasis": "**a",
    "nested brackets": "[[](",
    "tables": "|-",
    "bullets": "- a\n",
    "tags": "<b ",
    "reasoning": "<think>",
    "tokens": "<|",
    "placeholders": "{{",
    "orders with words": "ignore the previous rules ",
    "addresses": "a.com ",
    "mail": "a@",
    "meta text": "note that title ",
    "sentences": "No. 5. A b! ",
}
ALL_ON = settings_with("description", banned_terms={"*": ("miracle cure", "\u676f\u5b50")}, max_copied_ratio=0.9)
CHECKER = Checker(ALL_ON.task("description"), tokens=frozenset({"<|im_end|>"}))


def hostile(name: str, size: int) -> str:
    """The pattern over and over, between words, so that nothing is stripped or rejected as empty."""
    unit = TEXTS[name]
    return f"Mug {(unit * (size // len(unit) + 1))[:size]} x"


def distinct(size: int) -> str:
    """Quantities, addresses and words that are all different."""
    return "Mug " + " ".join(f"{i} cm A{i}x w{i}.com" for i in range(size // 22))


def functions() -> dict[str, Callable[[Source, str], object]]:
    """Everything that reads a text, by name."""
    found: dict[str, Callable[[Source, str], object]] = {
        "nfc": lambda _, text: nfc(text),
        "repair": lambda _, text: repair(text, text, thinking=False),
        "repair with thinking": lambda _, text: repair(text, text, thinking=True),
        "unquote": lambda _, text: unquote(f'"{text}"', text),
        "count_words": lambda _, text: count_words(text),
        "count_sentences": lambda _, text: count_sentences(text),
        "count_emoji": lambda _, text: count_emoji(text),
        "is_unspaced": lambda _, text: is_unspaced(text),
        "without_invisible": lambda _, text: without_invisible(text),
        "has_loop": lambda _, text: has_loop(text.split()),
        "repeated_ngram_ratio": lambda _, text: repeated_ngram_ratio(text.split()),
    }
    for one in registered():
        found[one.codes[0]] = lambda source, text, one=one: one.check(View(source, text, "stop", CHECKER.context, True))
    return found


def seconds(function: Callable[[Source, str], object], source: Source, text: str) -> float:
    started = time.process_time()
    function(source, text)
    return time.process_time() - started


def slow_ones(
    make: Callable[[int], tuple[Source, str]], sizes: tuple[int, int] = (SHORT, LONG)
) -> dict[str, tuple[float, float]]:
    """Functions whose time grows twice as fast as the text, or is too long; a second look tells bad luck apart."""
    short, long, found = make(sizes[0]), make(sizes[1]), {}
    for name, function in functions().items():
        for _ in range(2):
            taken = seconds(function, Source(**vars(long[0])), long[1])
            if taken < SLACK:
                break
            before = seconds(function, Source(**vars(short[0])), short[1])
            if taken < SECONDS and taken < 2 * sizes[1] / sizes[0] * before + SLACK:
                break
        else:
            found[name] = (round(before, 3), round(taken, 3))
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_time_is_linear_in_the_output(name: str) -> None:
    source = Source(title="Ceramic mug", description="A mug for 5 cups, 30 cl.", brand="Acme", locale="en-US")
    assert slow_ones(lambda size: (source, hostile(name, size))) == {}


@pytest.mark.parametrize("name", ["measures", "marks out of order", "mixed scripts", "orders with words"])
def test_time_is_linear_in_the_source(name: str) -> None:
    def make(size: int) -> tuple[Source, str]:
        text = hostile(name, size)
        return Source(title=text[: size // 2], description=text[size // 2 :], brand="Acme", locale="en-US"), text

    assert slow_ones(make, LONG_SOURCES) == {}


def test_time_is_linear_where_every_piece_is_another() -> None:
    def make(size: int) -> tuple[Source, str]:
        text = distinct(size)
        return Source(title="Mug", description=text.replace("cm", "kg").replace("x w", "y w"), locale="en-US"), text

    assert slow_ones(make) == {}


@pytest.mark.parametrize(
    "name", ["punctuation", "spaces", "digits", "emoji", "marks out of order", "Han", "nested brackets"]
)
def test_a_megabyte_gets_its_verdict_in_ten_times_the_time_of_a_tenth(name: str) -> None:
    def check(size: int) -> float:
        text = hostile(name, size)
        started = time.process_time()
        assert "too_long" in CHECKER.check(Source(title="Mug", description="A mug.", locale="en-US"), text).reasons
        return time.process_time() - started

    check(2000)  # what is loaded on first use is no matter of length
    tenth, whole = check(100_000), check(1_000_000)
    assert whole < 15 * tenth + 1 or check(1_000_000) < 15 * check(100_000) + 1
    assert whole < 15
