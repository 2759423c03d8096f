"""Markdown and HTML in copy that must be plain text.

A CommonMark parser is no judge here: it reads `5*7 in and 8*10 in` as emphasis and `1986. A great year` as a list. Each
kind has its own pattern, none shared with other validators, and every pattern's scan stops at its own delimiter, which
keeps it linear.
"""

from __future__ import annotations

import re
from html.entities import html5

from include.validation.registry import by_pattern, validator
from include.validation.view import View

_TAGS = (
    "a|abbr|address|article|aside|audio|b|big|blockquote|body|br|button|canvas|caption|center|cite|code|col|dd|del|details"
    "|div|dl|dt|em|embed|fieldset|figcaption|figure|font|footer|form|frame|h[1-6]|head|header|hr|html|i|iframe|img|input|ins"
    "|kbd|label|legend|li|link|main|mark|meta|nav|noscript|object|ol|option|p|param|pre|q|s|samp|script|section|select|small"
    "|source|span|strike|strong|style|sub|summary|sup|svg|table|tbody|td|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|var|video"
)
_HTML = re.compile(rf"<(?:/?(?:{_TAGS})(?=[\s/>])[^<>]*>|!--|!doctype|!\[cdata)", re.I)
_ENTITY = re.compile(
    r"&(?:#\d{1,7};|#[xX][0-9a-fA-F]{1,6};|([A-Za-z][A-Za-z0-9]{1,31});|(?:amp|nbsp|quot|lt|gt|apos)\b)"
)
_EMPHASIS = re.compile(
    r"(?<![\w*\\])(\*{1,3})(?=[^\s*])[^*\n]*(?<=[^\s*\\])\1(?![\w*])"  # *soft*, **soft**, not 5*7 and 8*10
    r"|\*\*(?=[^\W\d_])[^*\n]*(?<=[^\s*])\*\*"  # Soft**ness**
    r"|(?<![\w_])(_{1,3})(?=[^\s_])[^_\n]*(?<=[^\s_])\2(?![\w_])"
    r"|~~(?=[^\s~])[^~\n]*(?<=[^\s~])~~"
    r"|(?:^|(?<=[\s(]))(?:\*{2,3}|_{2,3})(?=[^\W\d_])|(?<=[^\W\d_])(?:\*{2,3}|_{2,3})(?=$|[\s.,:;!?)])",  # never closed
    re.M,
)
_HEADING = re.compile(
    r"^ {0,3}#{1,6}[ \t]+\S|^ {0,3}(?:(?:\*[ \t]*+){3,}+|(?:-[ \t]*+){3,}+|(?:_[ \t]*+){3,}+)$|(?<=\S\n) {0,3}(?:=+|--+)[ \t]*$",
    re.M,
)
_CODE = re.compile(r"```|(?<![\w`])`[^`\n]{2,}`(?![\w`])")  # `n` for "and" is none
_LINK = re.compile(
    r"\]\((?:https?:|www\.|/|#|mailto:)?[^()\s]+\)|\][\[][^\[\]\n]*\]|^\[[^\[\]\n]{1,80}\]:[ \t]*\S+|<https?://[^<>\s]+>",
    re.M,
)
_BLOCK = re.compile(r"^\|?[ \t]*:?-{3,}:?[ \t]*\|[-| \t:]*$|^\|[^\n]*\|[ \t]*$|^ {0,3}>+[ \t]*[^\W\d_]", re.M)
_BULLET = re.compile(r"^[ \t]{0,8}([-*+•·‣◦▪–])[ \t]+\S", re.M)
_ORDERED = re.compile(r"^[ \t]{0,8}\d{1,3}[.)][ \t]+\S", re.M)

by_pattern("html", "<", _HTML, "A tag of HTML or a comment; `<5 V` and `I <3 tea` are none.")


@validator("html_entity", when="&")
def html_entity(view: View) -> bool:
    """A character reference that HTML knows, such as &amp; or &#39;."""
    return any(m.group(1) is None or f"{m.group(1)};" in html5 for m in _ENTITY.finditer(view.output))


by_pattern("markdown_emphasis", "*_~", _EMPHASIS,
           "Bold, italics or strike-through; asterisks between numbers and lone footnote marks are none.")  # fmt: skip
by_pattern(
    "markdown_heading", r"\#\n", _HEADING, "`# Heading`, an underlined heading or a rule; `#10 envelope` is none."
)


@validator("markdown_bullets", when=r"\-*+•·‣◦▪–\n")
def markdown_bullets(view: View) -> bool:
    """A line that starts as a list item where the source's lines do not, or two ordinal lines. `-20 °C` is none."""
    if "\n" not in view.output and view.output[0].isalnum():
        return False
    marks = set(_BULLET.findall(view.output))
    if marks and (not marks.isdisjoint("-*") or not marks.issubset(_BULLET.findall(view.source.text))):
        return True
    return "\n" in view.output and len(_ORDERED.findall(view.output)) > 1


by_pattern("markdown_code", "`", _CODE, 'Code spans and fences; `n` for "and" between backticks is none.')
by_pattern("markdown_link", r"\]<", _LINK, "Inline, reference and angle-bracket links, and images.")
by_pattern("markdown_block", r"\|>", _BLOCK, "Tables and block quotes.")
