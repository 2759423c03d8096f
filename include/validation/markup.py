"""Markdown and HTML in copy that must be plain text.

A CommonMark parser is no judge here: it reads `5*7 in and 8*10 in` as emphasis and `1986. A great year` as a list. Each
kind has its own pattern, none shared with other validators, and every pattern's scan stops at its own delimiter, which
keeps it linear.
"""

from __future__ import annotations

import re
from html.entities import html5

from include.validation.registry import validator
from include.validation.view import View

_EMPHASIS = re.compile(
    r"(?<![\w*\\])(\*{1,3})(?=[^\s*])[^*\n]*(?<=[^\s*\\])\1(?![\w*])"  # *soft*, **soft**, not 5*7 and 8*10
    r"|\*\*(?=[^\W\d_])[^*\n]*(?<=[^\s*])\*\*"  # Soft**ness**
    r"|(?<![\w_])(_{1,3})(?=[^\s_])[^_\n]*(?<=[^\s_])\2(?![\w_])"
    r"|~~(?=[^\s~])[^~\n]*(?<=[^\s~])~~"
)
_UNCLOSED = re.compile(
    r"(?:^|(?<=[\s(]))(?:\*{2,3}|_{2,3})(?=[^\W\d_])|(?<=[^\W\d_])(?:\*{2,3}|_{2,3})(?=$|[\s.,:;!?)])", re.M
)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+\S", re.M)
_RULE = re.compile(r"^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$", re.M)
_UNDERLINE = re.compile(r"(?<=\S\n) {0,3}(?:=+|-{2,})[ \t]*$", re.M)
_BULLET = re.compile(r"^[ \t]{0,8}([-*+•·‣◦▪–])[ \t]+\S", re.M)
_ORDERED = re.compile(r"^[ \t]{0,8}\d{1,3}[.)][ \t]+\S", re.M)
_CODE = re.compile(r"```|(?<![\w`])`[^`\n]+`(?![\w`])")
_LINK = re.compile(
    r"\]\((?:https?:|www\.|/|#|mailto:)?[^()\s]+\)|\][\[][^\[\]\n]*\]|^\[[^\[\]\n]{1,80}\]:[ \t]*\S+|<https?://[^<>\s]+>",
    re.M,
)
_TABLE = re.compile(r"^\|?[ \t]*:?-{3,}:?[ \t]*\|[-| \t:]*$|^\|[^\n]*\|[ \t]*$", re.M)
_QUOTE = re.compile(r"^ {0,3}>+[ \t]*[^\W\d_]", re.M)

_TAG = re.compile(
    r"<(?:/?(?:a|abbr|address|article|aside|audio|b|big|blockquote|body|br|button|canvas|caption|center|cite|code|col|dd|del|details"
    r"|div|dl|dt|em|embed|fieldset|figcaption|figure|font|footer|form|frame|h[1-6]|head|header|hr|html|i|iframe|img|input|ins"
    r"|kbd|label|legend|li|link|main|mark|meta|nav|noscript|object|ol|option|p|param|pre|q|s|samp|script|section|select|small"
    r"|source|span|strike|strong|style|sub|summary|sup|svg|table|tbody|td|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|var|video)"
    r"(?=[\s/>])[^<>]*>|!--|!doctype|!\[cdata)",
    re.I,
)
_ENTITY = re.compile(
    r"&(?:#\d{1,7};|#[xX][0-9a-fA-F]{1,6};|([A-Za-z][A-Za-z0-9]{1,31});|(?:amp|nbsp|quot|lt|gt|apos)\b)"
)


@validator("html", markup=True)
def html(view: View) -> bool:
    """A tag of HTML or a comment; `<5 V` and `I <3 tea` are none."""
    return "<" in view.output and _TAG.search(view.output) is not None


@validator("html_entity", markup=True)
def html_entity(view: View) -> bool:
    """A character reference that HTML knows, such as &amp; or &#39;."""
    if "&" not in view.output:
        return False
    return any(m.group(1) is None or f"{m.group(1)};" in html5 for m in _ENTITY.finditer(view.output))


@validator("markdown_emphasis", markup=True)
def markdown_emphasis(view: View) -> bool:
    """Bold, italics or strike-through; asterisks between numbers and lone footnote marks are none."""
    text = view.output
    if "*" not in text and "_" not in text and "~~" not in text:
        return False
    return _EMPHASIS.search(view.output) is not None or _UNCLOSED.search(view.output) is not None


@validator("markdown_heading", markup=True)
def markdown_heading(view: View) -> bool:
    """`# Heading`, an underlined heading or a rule; `#10 envelope` is none."""
    text = view.output
    if "#" in text and _HEADING.search(text):
        return True
    if "\n" not in text:
        return _RULE.match(text) is not None
    return _RULE.search(text) is not None or _UNDERLINE.search(text) is not None


@validator("markdown_bullets", markup=True)
def markdown_bullets(view: View) -> bool:
    """A line that starts as a list item where the source's lines do not, or two ordinal lines. `-20 °C` is none."""
    text = view.output
    lines = "\n" in text
    if (_BULLET.search(text) if lines else _BULLET.match(text)) is not None:
        marks = {m.group(1) for m in _BULLET.finditer(text)}
        if "-" in marks or "*" in marks or not marks <= {m.group(1) for m in _BULLET.finditer(view.source_text)}:
            return True
    return lines and sum(1 for _ in _ORDERED.finditer(text)) > 1


@validator("markdown_code", markup=True)
def markdown_code(view: View) -> bool:
    """Code spans and fences; `n` for "and" between backticks is none."""
    if "`" not in view.output:
        return False
    return any(len(m.group()) > 3 or m.group() == "```" for m in _CODE.finditer(view.output))


@validator("markdown_link", markup=True)
def markdown_link(view: View) -> bool:
    """Inline, reference and angle-bracket links, and images."""
    return ("]" in view.output or "<http" in view.output) and _LINK.search(view.output) is not None


@validator("markdown_block", markup=True)
def markdown_block(view: View) -> bool:
    """Tables and block quotes."""
    if "|" in view.output and _TABLE.search(view.output):
        return True
    return ">" in view.output and _QUOTE.search(view.output) is not None
