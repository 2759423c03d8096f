"""Searching a text for any of many phrases."""

from __future__ import annotations

import re
from collections import defaultdict

_COMMON = "eaoisrtnl dcuhpmfgywbvkxzqj"  # letters of listings, the most frequent first


def any_of(*phrases: str) -> re.Pattern[str]:
    """A pattern that finds any of the phrases (lower case), faster than a search for each.

    `re` skips to the next letter that an alternative begins with. So each phrase is entered at its rarest letter, and what
    stands before it is looked up behind.
    """
    entries: defaultdict[str, list[str]] = defaultdict(list)
    for phrase in phrases:
        at = max(range(len(phrase)), key=lambda i: _COMMON.find(phrase[i]) % 99)  # what is no letter is rarest
        entries[phrase[at]].append(f"{re.escape(phrase[at + 1 :])}(?<={re.escape(phrase)})")
    return re.compile("|".join(f"{re.escape(letter)}(?:{'|'.join(rest)})" for letter, rest in entries.items()))
