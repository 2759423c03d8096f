"""Chat messages from the Jinja templates: a stable instruction block first, then one listing.

The instruction block takes no variables, so it is byte-identical for every listing of a task and the engine's prefix
cache serves it. Merchant text stands between tags that it cannot close or forge: see `neutralise`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import jinja2
import regex

from include.extraction.cleaning import plain_text
from include.generation.engine import Request
from include.records import Listing
from include.settings import TEMPLATES_DIR

# What merchant text could use to leave its place: our own tags and the turn tokens of common chat templates.
_FORGED = regex.compile(r"<(?=\s*(?:\||/?\s*(?:listing|copy|think|s>|im_|start_of_turn|end_of_turn|tool)))", regex.I)


def neutralise(text: str) -> str:
    """Breaks tags and chat turn tokens in untrusted text by a space after `<`; `<5 V` and `<b>` stay as they are."""
    return _FORGED.sub("< ", text)


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES_DIR),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=False,
    )
    return environment.get_template(name)


def render_block(template: str, block: str, **values: str) -> str:
    """One block of a template. Raises jinja2.UndefinedError when the template uses a value that is not given."""
    found = _template(template)
    return "".join(found.blocks[block](found.new_context(values))).strip()


def listing_values(listing: Listing, prompt_fields: tuple[str, ...]) -> dict[str, str]:
    """The listing's fields as a template sees them: plain text, neutralised, and empty unless the task reads them."""
    values = dict.fromkeys(("title", "description", "brand", "category", "attributes"), "")
    for name in prompt_fields:
        text = str(getattr(listing, name))
        if name == "attributes":
            text = "; ".join(f"{key}: {value}" for key, value in json.loads(text or "{}").items())
        values[name] = neutralise(plain_text(text))  # in this order: escaped markup may hide our tags
    return values | {"locale": listing.locale}


def messages(template: str, **values: str) -> list[dict[str, str]]:
    """System and user message of one prompt, for the model's own chat template."""
    return [
        {"role": "system", "content": render_block(template, "instructions")},
        {"role": "user", "content": render_block(template, "listing", **values)},
    ]


def rendered(tokenizer: Any, requests: Iterable[Request]) -> list[str]:
    """Each prompt as the model reads it, by the chat template of its tokenizer (transformers'); special tokens are within."""
    return [
        tokenizer.apply_chat_template(
            [dict(message) for message in request.messages],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=request.thinking,
        )
        for request in requests
    ]
