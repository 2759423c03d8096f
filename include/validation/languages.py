"""Language and script: has the output left the language of its source?

Scripts are decided character by character. Languages within a script are decided only where there is enough new text:
function words settle nearly every text at the price of a dictionary look-up, and lingua is asked only about the stretches
that they leave in doubt. Both are deterministic. Short and brand-only texts stay "unknown", which rejects nothing.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import regex

from include.validation.function_words import LANGUAGES_OF
from include.validation.registry import validator
from include.validation.view import View

if TYPE_CHECKING:
    from lingua import LanguageDetector

_FOREIGN = regex.compile(r"[[\p{L}\p{M}]--[\p{Latin}\p{Common}\p{Inherited}]]+", regex.V1)
_LATIN_WORD = regex.compile(r"\p{Latin}{2,}")
_SAME = str.maketrans({"\u2126": "Ω", "\u00b5": "μ", "\u212b": "Å", "\u212a": "K"})
# Scripts that one language writes together, so that a source in one of them makes the others no leak.
_TOGETHER = (frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}), frozenset({"HANGUL", "CJK"}))
_LOCALE_SCRIPTS = {
    "zh": {"CJK"},
    "ja": {"CJK", "HIRAGANA", "KATAKANA"},
    "ko": {"HANGUL"},
    "ru": {"CYRILLIC"},
    "uk": {"CYRILLIC"},
    "bg": {"CYRILLIC"},
    "ar": {"ARABIC"},
    "fa": {"ARABIC"},
    "he": {"HEBREW"},
    "th": {"THAI"},
    "el": {"GREEK"},
    "hi": {"DEVANAGARI"},
}
_MIN_SWITCHED_LETTERS = 15  # of another script: unmistakable, so far fewer than a language within one script needs
_WINDOW = 12  # words looked at together
_SHARED_SCRIPTS = frozenset({"LATIN", "CYRILLIC", "ARABIC", "DEVANAGARI"})  # written by several languages


@lru_cache(maxsize=65_536)
def script_of(char: str) -> str:
    """Script of a letter by its Unicode name: "LATIN", "CJK", "CYRILLIC" …; empty for nameless code points."""
    return unicodedata.name(char, "").split(" ", 1)[0]


def scripts(text: str) -> Counter[str]:
    """Letters of a text by script."""
    if text.isascii():
        return Counter({"LATIN": sum(map(str.isalpha, text))})
    return Counter(script_of(c) for c in text if c.isalpha())


def _main_scripts(view: View) -> frozenset[str]:
    """Scripts that are the source's own: a fifth of its letters or more, with those written together with them."""
    found = scripts(view.source_text[:2000])
    total = sum(found.values())
    if total == 0:
        return frozenset(_LOCALE_SCRIPTS.get(view.source.locale[:2].lower(), ()))
    main = {name for name, count in found.items() if count * 5 >= total}
    for group in _TOGETHER:
        kana = found["HIRAGANA"] + found["KATAKANA"]
        if main & group and (group is _TOGETHER[1] or kana * 10 >= total):
            main |= group
    return frozenset(main)


@validator("script_leak")
def script_leak(view: View) -> bool:
    """Letters of a script that the source is not written in, unless the source holds that very string.

    One Han character is enough. Greek is notation where it stands alone (kΩ, µF, α-tocopherol).
    """
    if view.ascii:
        return False
    runs = {run.translate(_SAME) for run in _FOREIGN.findall(view.output)}
    if not runs:
        return False
    source = view.source_lower.translate(_SAME)
    main: frozenset[str] | None = None
    for run in runs:
        if run.lower() in source or (len(run) == 1 and script_of(run) == "GREEK"):
            continue
        main = _main_scripts(view) if main is None else main
        if any(script_of(c) not in main for c in run if c.isalpha()):
            return True
    return False


@cache
def _detector() -> LanguageDetector:
    """lingua over the languages of our function words, trigrams only: a tenth of the memory, and texts here are long enough."""
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    known = sorted({language for languages in LANGUAGES_OF.values() for language in languages})
    codes = [getattr(IsoCode639_1, code.upper()) for code in known]
    return LanguageDetectorBuilder.from_iso_codes_639_1(*codes).with_low_accuracy_mode().build()


def _confidences(text: str) -> dict[str, float]:
    return {
        c.language.iso_code_639_1.name.lower(): c.value for c in _detector().compute_language_confidence_values(text)
    }


def _source_languages(view: View) -> frozenset[str]:
    """Languages that the source's function words speak for, else its locale's; empty when neither says anything."""
    hits: Counter[str] = Counter()
    for word in view.source_words:
        for language in LANGUAGES_OF.get(word, ()):
            hits[language] += 1
    if hits:
        best = max(hits.values())
        if best >= 2:
            return frozenset(name for name, count in hits.items() if count * 4 >= best * 3)
    locale = view.source.locale[:2].lower()
    return frozenset({locale}) if view.source.locale[2:3] in ("", "-", "_") and locale else frozenset()


def _doubtful(view: View, own: frozenset[str]) -> tuple[str, bool]:
    """The stretches of the output whose function words are not the source's, and whether other languages' stand there."""
    words, known = view.words, view.source_words
    kept: list[str] = []
    foreign_total = 0
    for start in range(0, len(words), _WINDOW):
        window = words[start : start + _WINDOW]
        ours = foreign = letters = 0
        for word in window:
            languages = LANGUAGES_OF.get(word)
            if languages is not None:
                if own.isdisjoint(languages):
                    foreign += word not in known
                else:
                    ours += 1
            if word not in known:
                letters += len(word)
        if (foreign >= 2 and foreign > ours) or (ours == 0 and letters >= view.settings.min_letters_for_language):
            kept.extend(window)
            foreign_total += foreign
    return " ".join(kept), foreign_total > 1


@validator("language_switch")
def language_switch(view: View) -> bool:
    """The output, or a good part of it, is in another language or script than the source."""
    least = view.settings.min_letters_for_language
    if view.letters < min(least, _MIN_SWITCHED_LETTERS):
        return False
    main = _main_scripts(view) if not (view.ascii and view.source_text.isascii()) else frozenset({"LATIN"})
    novel = view.novel_words
    if main and "LATIN" not in main:
        latin = sum(len(w) for w in novel if w[0].isascii())
        return latin >= max(_MIN_SWITCHED_LETTERS, 0.3 * view.letters)
    if sum(map(len, novel)) < least:
        return False
    own = _source_languages(view)
    text, foreign = _doubtful(view, own)
    if sum(map(len, text.split())) < least:
        return False
    return _is_other_language(view, text, own, foreign)


def _is_other_language(view: View, text: str, own: frozenset[str], foreign: bool) -> bool:
    """lingua's word on a doubtful stretch; the more sure it must be the less the function words say."""
    found = _confidences(text[:600])
    best = max(found, key=lambda name: found[name])
    if best in own or found[best] < (0.5 if foreign else 0.9):
        return False
    if not own or max((found.get(name, 0.0) for name in own), default=0.0) > 0.2:
        return False
    source = view.source_text[:600]
    if sum(map(str.isalpha, source)) >= view.settings.min_letters_for_language:
        theirs = _confidences(source.lower())
        return theirs[best] < 0.5
    return foreign
