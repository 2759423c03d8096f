"""Characters that do not belong in copy: emoji and pictographs, invisible and bidi marks, broken Unicode, stray letters of decoration."""

from __future__ import annotations

import re

import regex

from include.validation.registry import by_pattern, validator
from include.validation.view import View

# Emoji by presentation, not by the Emoji property, which holds digits, # and the legal marks. One match is one emoji as
# a reader counts: a flag, a keycap, or a ZWJ sequence with its skin tones.
_UNIT = r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F|\p{Extended_Pictographic}(?=\u200D))\p{Emoji_Modifier}?\uFE0F?"
EMOJI = regex.compile(
    rf"\p{{Regional_Indicator}}{{2}}|[0-9#*]\uFE0F?\u20E3|{_UNIT}(?:\u200D(?:{_UNIT}|\p{{Extended_Pictographic}}\p{{Emoji_Modifier}}?\uFE0F?))*+"
    r"|\p{Emoji_Modifier}|\p{Regional_Indicator}"
)
# Decorative symbols: geometric shapes, dingbats, arrows for show. Sexes, musical accidentals and card-free text marks stay.
_DECORATION = r"\u25A0-\u25FF\u2600-\u263F\u2643-\u265F\u2660-\u266C\u2670-\u27BF\u2B00-\u2BFF\U0001F000-\U0001FAFF\u3030\u303D\u3297\u3299"
_PICTOGRAPH = regex.compile(f"[{_DECORATION}]")
# Marks that show as nothing. ZWNJ and ZWJ are letters' business in Arabic and Indic scripts, ZWJ and VS16 in emoji.
_NOTHING = r"\u00AD\u034F\u115F\u1160\u17B4\u17B5\u180B-\u180E\u200B\u2028\u2029\u2060-\u2065\u206A-\u206F\u3164\uFEFF\uFFA0\uFFF9-\uFFFB\U000E0000-\U000E0FFF\uFE00-\uFE0E"
_JOINED = (
    r"\p{Arabic}\p{Syriac}\p{Mongolian}\p{Bengali}\p{Devanagari}\p{Kannada}\p{Malayalam}\p{Tamil}\p{Telugu}\p{Sinhala}"
)
_INVISIBLE = regex.compile(
    rf"[{_NOTHING}]|(?<![{_JOINED}\p{{Nko}}\p{{Khmer}}\p{{Indic_Syllabic_Category=Virama}}\p{{Indic_Syllabic_Category=Pure_Killer}}])\u200C"
    rf"|(?<![{_JOINED}\p{{Extended_Pictographic}}\p{{Emoji_Modifier}}\uFE0F])\u200D|(?<!\p{{Emoji}})\uFE0F"
)
# Control, replacement and private characters, lone surrogates, noncharacters, piles of combining marks.
_CONTROL = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\uFFFD\uFFFC\p{Co}\p{Cs}\uFDD0-\uFDEF\uFFFE\uFFFF"
_BROKEN = regex.compile(rf"[{_CONTROL}]|\p{{M}}{{5}}")
# UTF-8 read as Latin-1 or Windows-1252: a lead byte's letter and then a continuation byte's sign.
_MOJIBAKE = re.compile(r"Ã[\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|â€[\x80-\xbf€™œ\x9d˜“”¢¦]?|Â[\xa0-\xbf]|ï¿½|ðŸ")
_FANCY = r"\U0001D400-\U0001D7FF\u24B6-\u24E9\uFF21-\uFF3A\uFF41-\uFF5A\U0001F130-\U0001F189"
_FANCY_LETTER = regex.compile(f"[{_FANCY}]")


def count_emoji(text: str) -> int:
    """Emoji as a reader counts them; ®, ™, ©, digits and # are none unless an emoji presentation selector follows."""
    return 0 if text.isascii() else sum(1 for _ in EMOJI.finditer(text))


def without_invisible(text: str) -> str:
    """Text without the marks that `invisible_chars` rejects; nothing is put in their place."""
    return _INVISIBLE.sub("", text)


@validator("broken_unicode", when=rf"{_CONTROL}\p{{M}}ÃâÂïð")
def broken_unicode(view: View) -> bool:
    """Replacement characters, lone surrogates, control characters, or text decoded with the wrong table."""
    return _BROKEN.search(view.output) is not None or view.invents(_MOJIBAKE)


by_pattern("bidi_control", r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069", None,
    "Any of the 12 Bidi_Control characters: they can make a reader see another text than the one that was checked.")  # fmt: skip
by_pattern(
    "invisible_chars", rf"{_NOTHING}\u200C\u200D\uFE0F", _INVISIBLE, "Zero-width and filler characters inside the text."
)


@validator("emoji", when=r"\p{Emoji_Presentation}\p{Emoji_Modifier}\p{Regional_Indicator}\uFE0F\u200D\u20E3")
def emoji(view: View) -> bool:
    """More emoji than `max_emoji`."""
    return count_emoji(view.output) > view.settings.max_emoji


@validator("pictograph", when=_DECORATION)
def pictograph(view: View) -> bool:
    """Decorative symbols (★ ✔ ►) that the source does not hold."""
    return any(mark not in view.source.text for mark in set(_PICTOGRAPH.findall(EMOJI.sub("", view.output))))


@validator("fancy_letters", when=_FANCY)
def fancy_letters(view: View) -> bool:
    """Letters in mathematical bold, circles or full width, absent from the source."""
    return view.invents(_FANCY_LETTER)
