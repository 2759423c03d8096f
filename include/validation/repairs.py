"""Lossless repairs, each named so that it can be counted: nothing here changes what the text says."""

from __future__ import annotations

import re

from include.validation.view import nfc

_TAGS = "think|thinking|thought|thoughts|reasoning|reflection|analysis|scratchpad"
OPEN_REASONING = re.compile(rf"</?(?:{_TAGS})\b[^<>]{{0,40}}>|\[/?THINK\]|<\|(?:begin|end)_of_thought\|>", re.I)
_EMPTY_BLOCK = re.compile(rf"<({_TAGS})>\s*</\1>", re.I)
_CLOSE = re.compile(rf"</(?:{_TAGS})>|\[/THINK\]|<\|end_of_thought\|>", re.I)

# White space and the marks that show as nothing at the edges of a text (zero-width space, word joiner, byte order mark).
_EDGE = " \t\r\n\v\f\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\u200b\u2060\ufeff\u00ad\x85"
_QUOTES = dict(zip("\"'“‘«»„‚「『`", ('"', "'", "”", "’", "»", "«", "“”", "‘’", "」", "』", "`"), strict=True))


def unquote(text: str, source: str) -> str:
    """Text without one matching outer pair of quotes.

    Left alone when the same quotes stand inside (`"Hello" print "World"`) or when the source quotes the text likewise.
    """
    if len(text) < 3 or text[-1] not in _QUOTES.get(text[0], ""):
        return text
    inner = text[1:-1]
    return text if text[0] in inner or text[-1] in inner or text in source else inner


def repair(text: str, source: str, *, thinking: bool) -> tuple[str, tuple[str, ...], bool]:
    """The repaired text, the repairs made and whether there is an answer (with thinking on, there is none before its block is closed).

    `source` is the merchant's text in the replaced field, for what stands there already.
    """
    found = nfc(text)
    done = ["nfc"] if found != text else []
    if thinking:
        parts = _CLOSE.split(found)
        if len(parts) == 1:
            return "", tuple(done), False
        found = parts[-1]
        done.append("reasoning_block")
    elif "<" in found and (without := _EMPTY_BLOCK.sub("", found, count=1)) != found:
        found = without
        done.append("reasoning_block")
    if (stripped := found.strip(_EDGE)) != found:
        found = stripped
        done.append("surrounding_space")
    if found and found[0] in _QUOTES and (plain := unquote(found, source)) != found:
        found = plain.strip(_EDGE)
        done.append("outer_quotes")
    return found, tuple(done), True
