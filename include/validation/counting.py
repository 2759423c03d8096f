"""How words and sentences are counted, over scripts.

Characters are code points after NFC. Words are whitespace-separated pieces that hold a letter or digit, so bare dashes
and slashes are none. Scripts without spaces (Han, Kana, Thai, Lao, Khmer, Myanmar) have no countable words: where such
letters are the majority the word rules do not apply, and a wide character counts twice towards `min_chars`.
"""

from __future__ import annotations

import re

import regex

_ALNUM = re.compile(r"[^\W_]")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_LETTER = regex.compile(r"\p{L}")
WIDE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")

# A sentence's end: a run of terminators, perhaps closing quotes, and then the end, a space or the next sentence's capital.
_END = re.compile(
    r"(?P<wide>[。！？｡]+)|(?P<strong>[!?؟।॥]+[!?.]*)|(?P<stop>(?<!\.)\.(?!\.))|(?P<dots>\.{2,}|…+)|(?P<line>\n+)"
)
_CLOSERS = "\"'”’»)]}"
_GO_ON = frozenset({"st", "dr", "mr", "mrs", "ms", "vs", "e.g", "i.e", "approx"})  # abbreviations before any word
_ABBREVIATIONS = (
    "no nos inc ltd co corp etc incl max min dia diam ca bzw z.b ggf inkl usw nr art vol fig jr sr u.s dept est ft in oz lb lbs"
    " qt pt gal sq"
)
_GO_ON_BEFORE_NUMBERS = frozenset(_ABBREVIATIONS.split())


def count_words(text: str) -> int:
    """Whitespace-separated pieces that hold a letter or digit: `T-shirt — 100% cotton / 2-pack` has four."""
    return sum([piece[0].isalnum() or _ALNUM.search(piece) is not None for piece in text.split()])


def is_unspaced(text: str) -> bool:
    """Whether most letters belong to scripts that put no spaces between words."""
    if text.isascii():
        return False
    unspaced = len(_UNSPACED.findall(text))
    return unspaced > 0 and unspaced * 2 > len(_LETTER.findall(text))


def _ends(text: str, found: re.Match[str]) -> bool:
    """Whether a terminator ends a sentence, by what stands around it."""
    start, end, kind = found.start(), found.end(), found.lastgroup
    after = text[end : end + 3].lstrip(_CLOSERS)[:1]
    if not after or kind in ("wide", "strong", "line"):
        return True
    if kind == "dots":  # "soft... perfect" goes on, "soft... Perfect" does not
        following = text[end : end + 8].lstrip(_CLOSERS + " ")
        return not following or following[0].isupper() or following[0] == "\n"
    if not after.isspace():  # "3.5", "v2.0" and "e.g." go on, "fast.Ships" ends
        before = text[max(0, start - 2) : start]
        return (
            len(before) == 2
            and before.isalpha()
            and before[1].islower()
            and after.isupper()
            and text[end + 1 : end + 2].islower()
        )
    following = text[end : end + 8].lstrip(_CLOSERS + " \t\n")[:1]
    if following.islower():
        return False
    last = (text[max(0, start - 12) : start].split() or [""])[-1]
    word = last.lower().lstrip("(\"'")
    # "No. 5", "approx. 5 cm", the initial of "J. Smith"; "5 V." ends, since its letter follows a number
    if len(word) == 1 and word.isalpha() and last[0].isupper():
        return text[max(0, start - 4) : start - 1].rstrip()[-1:].isdigit() or not following
    return word not in _GO_ON and not (word in _GO_ON_BEFORE_NUMBERS and following.isdigit())


def count_sentences(text: str) -> int:
    """Sentences; text without a terminator is one, empty text none. A line break ends one as well."""
    count, since = 0, 0
    for found in _END.finditer(text):
        if _ends(text, found):
            count += any(map(str.isalnum, text[since : min(found.start(), since + 200)]))
            since = found.end()
    return count + any(map(str.isalnum, text[since : since + 200]))
