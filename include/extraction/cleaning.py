"""Cleaning that never changes meaning, and the plain text that prompts and hashes see.

`clean` removes what no reader sees and no database keeps (NUL, controls, zero-width and bidirectional controls), repairs
what is certain (split surrogate pairs, Windows-1252 bytes read as C1 controls) and composes to NFC, never NFKC: `m²` and
`½` stay. It never adds a space in place of an invisible character.
"""

from __future__ import annotations

import html
import re
import unicodedata

import regex


class LoneSurrogateError(ValueError):
    """Half a surrogate pair: what the merchant wrote cannot be known, and no database takes it."""


# What WHATWG browsers read for the bytes 0x80 to 0x9F; the five undefined ones are removed.
_C1 = {
    code: bytes([code]).decode("cp1252") if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else ""
    for code in range(0x80, 0xA0)
}
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x01-\x08\x0e-\x1b\x7f\ufff9-\ufffc\ufdd0-\ufdef\ufffe\uffff]")
_SPACES = str.maketrans({"\r": "\n", "\x0b": "\n", "\x0c": "\n", "\u2028": "\n", "\u2029": "\n"} | dict.fromkeys("\x1c\x1d\x1e\x1f", " "))  # fmt: skip
_ZERO_WIDTH = re.compile("[\xad\u180e\u200b\u2060-\u2064\u206a-\u206f\ufeff]")
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # the twelve of Unicode's Bidi_Control
_C1_CLASS = re.compile("[\x80-\x9f]")
# Any of the above, joiners, variation selectors and tag characters: text without them is clean but for NFC.
_SUSPECT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufdd0-\ufdef"
    "\ufe00-\ufe0f\ufeff\ufff9-\ufffc\ufffe\uffff\U000e0000-\U000e01ef]"
)

_JOINING = (
    r"\p{Arabic}\p{Syriac}\p{Mandaic}\p{Nko}\p{Mongolian}\p{Devanagari}\p{Bengali}\p{Gurmukhi}\p{Gujarati}\p{Oriya}\p{Tamil}"
    r"\p{Telugu}\p{Kannada}\p{Malayalam}\p{Sinhala}\p{Tibetan}\p{Myanmar}\p{Khmer}\p{Balinese}\p{Javanese}"
)
_REPEATED_JOINER = re.compile("(\u200c|\u200d)\\1+")
# Joiners mean something between letters of joining scripts, and a ZWJ between two emoji; elsewhere they are invisible.
_IDLE_JOINER = regex.compile(
    rf"\u200c(?:(?<![{_JOINING}\p{{M}}]\u200c)|(?![{_JOINING}]))"
    rf"|(?<![{_JOINING}\p{{Mn}}\p{{Extended_Pictographic}}\ufe0f\U0001f3fb-\U0001f3ff])\u200d"
    rf"|(?<=[\p{{Extended_Pictographic}}\ufe0f\U0001f3fb-\U0001f3ff])\u200d(?!\p{{Extended_Pictographic}})"
)
# Variation selectors in runs and tag characters outside a flag carry hidden text, not looks.
_SELECTORS = re.compile("([\ufe00-\ufe0f\U000e0100-\U000e01ef])[\ufe00-\ufe0f\U000e0100-\U000e01ef]+")
_TAGS = re.compile("(\U0001f3f4[\U000e0061-\U000e007a\U000e0030-\U000e0039]{3,6}\U000e007f)|[\U000e0000-\U000e007f]")


def is_plain(text: str) -> bool:
    """Whether the text is printable ASCII, in which there is nothing to clean but surrounding spaces."""
    return text.isascii() and text.isprintable()


def clean(text: str, flags: set[str] | None = None) -> str:
    """The text without invisible rubbish, composed (NFC) and stripped; `flags` collects what was found.

    Raises LoneSurrogateError.
    """
    if is_plain(text):
        return text.strip()
    found = set() if flags is None else flags
    if _SUSPECT.search(text):
        text = _without_invisible(text, found)
    if not text.isascii() and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
        found.add("decomposed")
    return text.strip()


def _without_invisible(text: str, flags: set[str]) -> str:
    if _SURROGATE.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        if _SURROGATE.search(text):
            raise LoneSurrogateError("half a surrogate pair")
        flags.add("split_surrogates")
    text = text.replace("\r\n", "\n").translate(_SPACES)
    if "\0" in text:
        text = text.replace("\0", "")
        flags.add("nul")
    if _C1_CLASS.search(text):
        text = text.translate(_C1)
        flags.add("c1_control")
    for name, pattern, replacement in (
        ("control", _CONTROL, ""),
        ("zero_width", _ZERO_WIDTH, ""),
        ("bidi_control", _BIDI, ""),
        ("zero_width", _REPEATED_JOINER, r"\1"),
        ("zero_width", _IDLE_JOINER, ""),
        ("hidden_text", _SELECTORS, r"\1"),
        ("hidden_text", _TAGS, r"\1"),
    ):
        cleaned = pattern.sub(replacement, text)
        if cleaned != text:
            text = cleaned
            flags.add(name)
    return text


# HTML's element names: `<Brand Name>` or `<5 V` are text, and stay.
_BLOCK = (
    "address|article|aside|blockquote|body|caption|center|dd|details|dialog|dir|div|dl|dt|fieldset|figcaption|figure|footer|"
    "form|h[1-6]|head|header|hr|html|legend|li|link|main|menu|meta|nav|ol|optgroup|option|p|pre|section|summary|table|tbody|"
    "td|tfoot|th|thead|title|tr|ul|br"
)
_INLINE = (
    "a|abbr|acronym|applet|area|audio|b|base|basefont|bdi|bdo|big|button|canvas|cite|code|col|colgroup|data|datalist|del|dfn|"
    "em|embed|font|frame|frameset|i|iframe|img|input|ins|kbd|label|map|mark|meter|nobr|noscript|object|output|param|picture|"
    "progress|q|s|samp|script|select|small|source|span|strike|strong|style|sub|sup|svg|template|textarea|time|track|tt|u|var|"
    "video|wbr"
)
_ATTRIBUTES = (
    r"""(?:\s+[\w:.@-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>=]+)|\s+(?:checked|disabled|hidden|nowrap|noshade))*"""
)
_TAG = re.compile(rf"<(/?)({_BLOCK}|{_INLINE}){_ATTRIBUTES}\s*/?>", re.I)
_BLOCK_NAME = re.compile(_BLOCK, re.I)
_DROPPED = re.compile(r"<!--.*?-->|<(script|style)\b[^>]*>.*?</\1\s*>|<!doctype[^>]*>|<!\[CDATA\[|\]\]>", re.I | re.S)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_SPACE_RUN = re.compile(r"[^\S\n]{2,}|[^\S\n ]")
_LINES = re.compile(r" ?\n[\n ]*")


def _break_or_nothing(tag: re.Match[str]) -> str:
    return "\n" if _BLOCK_NAME.fullmatch(tag[2]) else ""


_RAISED = re.compile(r"<sup>\s*([0-9+-]{1,4})\s*</sup>", re.I)
_SUPERSCRIPT = str.maketrans("0123456789+-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻")


def _strip_markup(text: str) -> str:
    if "<" in text:
        text = _RAISED.sub(lambda raised: raised[1].translate(_SUPERSCRIPT), text)  # 10<sup>6</sup> is not 106
        text = _TAG.sub(_break_or_nothing, _DROPPED.sub("\n", text))
    if "&" in text and ";" in text:  # entities without a semicolon are not decoded: `&copy=2` in a link is no ©
        text = _ENTITY.sub(lambda entity: html.unescape(entity[0]).replace("\ufffd", ""), text)
    return text


def plain_text(text: str) -> str:
    """Cleaned text without HTML: tags go, block elements become line breaks, entities are decoded, spaces are single.

    Only HTML's own element names count as tags, so that `Works at <5 V and >3 V; cable<2m` stays. Markup that was itself
    escaped (`&lt;b&gt;`) is stripped, too.
    """
    if "<" in text or ("&" in text and ";" in text):
        stripped = _strip_markup(text)
        if stripped != text:
            text = clean(_strip_markup(stripped))
    if text.isprintable() and "  " not in text:  # a printable text has no space but U+0020
        return text.strip()
    return _LINES.sub("\n", _SPACE_RUN.sub(" ", text)).strip()
