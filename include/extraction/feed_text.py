"""Bytes of a merchant's feed as text: compression, encoding, and XML that parsers refuse.

Merchants name encodings wrongly, mix them, write control characters and bare ampersands. What is certain is repaired and
counted; bytes that fit no encoding become lone surrogates, so that their row alone is quarantined.
"""

from __future__ import annotations

import codecs
import html
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, cast

SAMPLE_BYTES = 262_144
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_XML_ENCODING = re.compile(rb"""<\?xml[^>]*encoding=["']([A-Za-z0-9._-]+)["']""")


def uncompressed(file: IO[bytes]) -> io.BufferedReader[Any]:
    """The bytes, unpacked when they are gzip whatever the file's name says."""
    buffered: io.BufferedReader[Any] = io.BufferedReader(cast("io.RawIOBase", file), SAMPLE_BYTES)
    if buffered.peek(2)[:2] == b"\x1f\x8b":
        return io.BufferedReader(_Gunzip(buffered), SAMPLE_BYTES)
    return buffered


class _Gunzip(io.RawIOBase):
    """Unpacks gzip, several members too. Of a file that was cut it gives all there is before it raises EOFError, where the
    standard library's reader loses its last block.
    """

    def __init__(self, packed: io.BufferedReader[Any]) -> None:
        self._packed, self._unpacker = packed, zlib.decompressobj(wbits=31)
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if self._unpacker.eof:
                rest = self._unpacker.unused_data.lstrip(b"\0") or self._packed.read1(65_536).lstrip(b"\0")
                if not rest:
                    return 0
                self._unpacker = zlib.decompressobj(wbits=31)
                self._ready = self._unpacker.decompress(rest)
            elif packed := self._packed.read1(65_536):
                self._ready = self._unpacker.decompress(packed)
            else:
                raise EOFError("the compressed file ends too early")
        given = min(len(buffer), len(self._ready))
        buffer[:given], self._ready = self._ready[:given], self._ready[given:]
        return given


def detect_encoding(sample: bytes) -> str:
    """Encoding of a file's beginning: byte order mark, else UTF-8 where it fits, else XML's own word, else a guess.

    A file that claims UTF-8 and is not is guessed; Windows-1252 is the answer when nothing is certain.
    """
    for mark, name in _BOMS:
        if sample.startswith(mark):
            return name
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # incremental: the sample may end within a character
        return "utf-8"
    except UnicodeDecodeError:
        pass
    declared = _XML_ENCODING.search(sample[:200])
    if declared and (name := declared[1].decode().lower()) not in ("utf-8", "utf8"):
        try:
            # Browsers read Latin-1 as its superset; XML from Windows says the one and means the other.
            return "cp1252" if codecs.lookup(name).name == "iso8859-1" else codecs.lookup(name).name
        except LookupError:
            pass
    from charset_normalizer import from_bytes

    text = re.sub(rb"[\x00-\x7f]{64,}", b" ", sample)[:65_536]  # long runs of ASCII say nothing
    found = from_bytes(text, cp_isolation=["cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "utf_16", "shift_jis", "gb18030", "big5"]).best()  # fmt: skip
    if found is None or sample.decode("cp1252", "replace") == sample.decode(found.encoding, "replace"):
        return "cp1252"  # where several fit alike, the common one
    return found.encoding


def decoded(buffered: io.BufferedReader[Any], encoding: str) -> tuple[io.TextIOWrapper, str]:
    """The text and the encoding that was used; `auto` detects it."""
    if encoding == "auto":
        encoding = detect_encoding(buffered.peek(SAMPLE_BYTES)[:SAMPLE_BYTES])
    return io.TextIOWrapper(buffered, encoding=encoding, errors="surrogateescape", newline=""), encoding


_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|&#(?:0*(?:[0-8]|1[1-2]|1[4-9]|2[0-9]|3[01])|[xX]0*(?:[0-8bBcCeEfF]|1[0-9a-fA-F]));")  # fmt: skip
_SURROGATES = re.compile("[\ud800-\udfff]")
_AMPERSAND = re.compile(
    r"&(?!#[0-9]{1,7};|#[xX][0-9a-fA-F]{1,6};|(?:amp|lt|gt|quot|apos);)([A-Za-z][A-Za-z0-9]{1,31};)?"
)
_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")
_DOCTYPE = re.compile(r"<!DOCTYPE[^>\[]*(\[[^\]]*\])?[^>]*>", re.I)
_PREFIX = re.compile(r"<(/?)g:")  # whose namespace some feeds forget to declare
_SECTION = re.compile(r"(<!\[CDATA\[.*?\]\]>)", re.S)


def repaired_xml(text: io.TextIOWrapper, repairs: Counter[str]) -> Iterator[str]:
    """Chunks of XML that a parser takes: without illegal characters, with `R&D` and `&nbsp;` made right outside CDATA.

    A document type is dropped with its entity definitions, so none can be expanded.
    """
    held, first = "", True
    while chunk := text.read(SAMPLE_BYTES):
        held += chunk
        if first:
            held, first = _DOCTYPE.sub("", _DECLARATION.sub("", held.lstrip("\ufeff"), count=1), count=1), False
        cut = _safe_cut(held)
        yield _repair(held[:cut], repairs)
        held = held[cut:]
    yield _repair(held, repairs)


def _safe_cut(text: str) -> int:
    """Where a chunk may end: not within a CDATA section, nor within a tag or an entity."""
    opened = text.rfind("<![CDATA[")
    if opened > text.rfind("]]>"):
        return opened
    return max(text.rfind(">") + 1, 0)


def _repair(text: str, repairs: Counter[str]) -> str:
    for name, pattern, replacement in (
        ("illegal_characters", _ILLEGAL, ""),
        ("undecodable_bytes", _SURROGATES, "\ufffd"),
    ):
        text, count = pattern.subn(replacement, text)
        repairs[name] += count
    if "&" not in text and "g:" not in text:
        return text
    parts = _SECTION.split(text) if "<![CDATA[" in text else [text]
    for index in range(0, len(parts), 2):  # the odd ones are CDATA
        parts[index], count = _AMPERSAND.subn(_escaped, parts[index])
        repairs["ampersands"] += count
        parts[index] = _PREFIX.sub(r"<\1", parts[index])
    return "".join(parts)


def _escaped(ampersand: re.Match[str]) -> str:
    name = ampersand[1]
    if name is None:
        return "&amp;"
    character = html.unescape(f"&{name}")
    return character if character != f"&{name}" else f"&amp;{name}"
