"""Language and script: has the output left the language of its source?

Scripts are decided character by character. Languages within a script are decided only where there is enough new text:
function words settle nearly every text at the price of a dictionary look-up, and lingua is asked only about the stretches
that they leave in doubt. Both are deterministic. Short and brand-only texts stay "unknown", which rejects nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import regex

from include.validation.function_words import ALIKE, LANGUAGES, LETTERS, profile
from include.validation.registry import validator
from include.validation.view import Source, View, script_of, words_of

if TYPE_CHECKING:
    from lingua import LanguageDetector

_FOREIGN_LETTERS = r"[\p{L}\p{M}]--[\p{Latin}\p{Common}\p{Inherited}]"
_FOREIGN = regex.compile(f"[{_FOREIGN_LETTERS}]+", regex.V1)
_MIXED = regex.compile(r"\p{Latin}\p{Cyrillic}+|\p{Cyrillic}+\p{Latin}")  # lookalike letters within one word
_BREAK = re.compile(r"[.!?;:\n|/]+")
_OTHER_SCRIPT = re.compile(
    "[\u0370-\u1dff\u2c00-\ud7ff\uf900-\ufaff\ufb1d-\ufeff\uff66-\uffdc\U00010000-\U0001efff\U00020000-\U0003ffff]"
)
_SAME = str.maketrans({"\u2126": "Ω", "\u00b5": "μ", "\u212b": "Å", "\u212a": "K"})
# Scripts that one language writes together, so that a source in one of them makes the others no leak.
_TOGETHER = (frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}), frozenset({"HANGUL", "CJK"}))
_LOCALE_SCRIPTS = {
    "ru": {"CYRILLIC"}, "uk": {"CYRILLIC"}, "bg": {"CYRILLIC"}, "ar": {"ARABIC"}, "fa": {"ARABIC"}, "zh": {"CJK"}, "ja": {"CJK", "HIRAGANA", "KATAKANA"}, "ko": {"HANGUL"}, "he": {"HEBREW"}, "th": {"THAI"}, "el": {"GREEK"}, "hi": {"DEVANAGARI"},
}  # fmt: skip
_MIN_SWITCHED_LETTERS = 15  # of another script: unmistakable, so far fewer than a language within one script needs
_LONGEST_STRETCH = 16  # words looked at together
_MOST_WORDS = 200  # of doubtful words; function words are counted in bytes
_LONG_SOURCE = 50_000  # from here on looking up words costs less than searching the text


def _language_of(locale: str) -> str:
    """The language code of a locale such as de-DE; empty for names that are no locale."""
    return locale[:2].lower() if locale[2:3] in ("", "-", "_") else ""


def _main_scripts(source: Source) -> frozenset[str]:
    """Scripts that are the source's own: its locale's, a fifth of its letters, and what goes with them."""
    found = source.scripts
    total = sum(found.values())
    main = {name for name, count in found.items() if count * 5 >= total}
    for group in _TOGETHER:
        kana = found["HIRAGANA"] + found["KATAKANA"]
        if main & group and (group is _TOGETHER[1] or kana * 10 >= total):
            main |= group
    return frozenset(main | _LOCALE_SCRIPTS.get(_language_of(source.locale), set()))


@validator("script_leak", when=_FOREIGN_LETTERS)
def script_leak(view: View) -> bool:
    """Letters of a script that the source is not written in, unless the source holds that very string.

    One Han character is enough, and so is a Cyrillic lookalike within a Latin word. Greek is notation where it stands alone (kΩ, µF, α-tocopherol).
    """
    if view.invents(_MIXED):
        return True
    source = view.source.lower.translate(_SAME)
    known = source if len(source) <= _LONG_SOURCE else frozenset(_FOREIGN.findall(source))
    runs = [run for run in {run.translate(_SAME) for run in _FOREIGN.findall(view.output)} if run.lower() not in known]
    main = _main_scripts(view.source) if runs else frozenset[str]()
    return bool(main) and any(
        not main.issuperset([script_of(c) for c in set(run) if c.isalpha()])
        and (len(run) > 1 or script_of(run) != "GREEK")
        for run in runs
    )


@cache
def _detector(languages: tuple[str, ...] = ()) -> LanguageDetector:
    """lingua over the given languages at full accuracy (30 MB each), or over all of LANGUAGES with trigrams only."""
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    codes = [getattr(IsoCode639_1, code.upper()) for code in languages or LANGUAGES]
    builder = LanguageDetectorBuilder.from_iso_codes_639_1(*codes)
    return (builder if languages else builder.with_low_accuracy_mode()).build()


def _confidences(text: str, languages: tuple[str, ...] = ()) -> dict[str, float]:
    """lingua's probabilities by language, those that are alike taken together. Lone surrogates, which it cannot read, are left out."""
    found: dict[str, float] = dict.fromkeys(languages or LANGUAGES, 0.0)
    readable = text.encode("utf-8", "ignore").decode()
    for entry in _detector(languages).compute_language_confidence_values(readable):
        code = entry.language.iso_code_639_1.name.lower()
        found[ALIKE.get(code, code)] += entry.value
    return found


def _names(counts: bytes, least: float) -> set[str]:
    return {ALIKE.get(name, name) for name, count in zip(LANGUAGES, counts, strict=True) if count >= least}


def _source_languages(view: View) -> frozenset[str]:
    """Languages that the source's function words speak for, with its locale's unless they clearly speak against it.

    Without either, lingua's opinion of the source if it is sure.
    """
    counts = profile(view.source.words)
    best = max(counts)
    own = _names(counts, max(3, best * 0.9))
    locale = _language_of(view.source.locale)
    if locale in LANGUAGES and (best < 5 or counts[LANGUAGES.index(locale)] * 3 >= best * 2):
        own.add(ALIKE.get(locale, locale))
    if not own and sum(map(len, view.source.words)) >= view.settings.min_letters_for_language:
        found = _confidences(view.source.lower[:600])
        own = {name for name, share in found.items() if share > 0.8}
    return frozenset(own)


def _stretches(text: str) -> Iterator[list[str]]:
    """Words of each sentence, long sentences in pieces."""
    for sentence in _BREAK.split(text):
        words = words_of(sentence)
        for start in range(0, len(words), _LONGEST_STRETCH):
            yield words[start : start + _LONGEST_STRETCH]


def _doubtful(view: View, own: frozenset[str]) -> tuple[list[str], bytes, int]:
    """The output's stretches of new words that may be in another language than the source.

    A stretch is in doubt where another language's function words lead, where the source's are rare, or where a new word has
    a letter that the source's languages do not use. Returns their words, the profile of those, and the others' lead.
    """
    mine = [i for i, name in enumerate(LANGUAGES) if ALIKE.get(name, name) in own]
    novel = frozenset(view.novel_words)
    strange = None if view.output.isascii() else _strange_letters(mine)
    kept: list[str] = []
    for words in _stretches(view.lower):
        new = [word for word in words if word in novel]
        if sum(map(len, new)) * 2 < sum(map(len, words)):
            continue
        counts = profile(words)
        ours = max([counts[i] for i in mine], default=0)
        if max(counts) > ours or ours * 8 < len(words) or (strange is not None and strange.search("".join(new))):
            kept += words
    kept = kept[:_MOST_WORDS]
    counts = profile(kept)
    return kept, counts, max(counts) - max([counts[i] for i in mine], default=0)


def _strange_letters(languages: list[int]) -> re.Pattern[str] | None:
    """A letter of the Latin or Cyrillic script that none of the languages uses; None where their letters are not listed."""
    names = [LANGUAGES[i] for i in languages]
    if not names or any(name not in LETTERS for name in names):
        return None
    return re.compile(rf"[^\W\d_a-z{''.join(LETTERS[name] for name in names)}]")


@validator("language_switch")
def language_switch(view: View) -> bool:
    """The output, or a good part of it, is in another language or script than the source."""
    least, ascii_source = view.settings.min_letters_for_language, view.source.text.isascii()
    if ascii_source and len(view.output) < least:
        return False
    letters = sum(map(len, view.novel_words))
    if letters < min(least, _MIN_SWITCHED_LETTERS):  # too few for either look
        return False
    if not ascii_source and _OTHER_SCRIPT.search(view.source.text) is not None:
        leading = view.source.scripts.most_common(1)
        if leading and leading[0][0] != "LATIN":
            latin = sum(len(word) for word in view.novel_words if word[0].isascii())
            return latin >= max(_MIN_SWITCHED_LETTERS, 0.3 * sum(map(len, view.words)))
    own = _source_languages(view) if letters >= least else frozenset()
    if not own:
        return False
    words, counts, lead = _doubtful(view, own)
    return sum(map(len, words)) >= least and _is_other_language(words, own, counts, lead)


def _is_other_language(words: list[str], own: frozenset[str], counts: bytes, lead: int) -> bool:
    """lingua's word on a doubtful stretch: another language against the source's, those languages only.

    The other language is one whose function words lead, or lingua's first guess where they do not lead clearly; it must
    be the surer the less the function words say.
    """
    text = " ".join(words)[:600]
    candidates = _names(counts, max(counts)) if lead > 0 else set()
    if lead < 2:
        found = _confidences(text)
        candidates.add(max(found, key=lambda name: found[name]))
    needed = 0.9 if lead >= 2 else 0.96
    others = sorted({ALIKE.get(name, name) for name in candidates} - own)
    return any(_confidences(text, tuple(sorted({*own, other})))[other] >= needed for other in others)
