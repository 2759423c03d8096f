"""What makes a listing new, what lets listings share a generation, and who is held out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from include.extraction.cleaning import clean, plain_text
from include.extraction.keys import (
    in_holdout,
    key_function,
    prompt_texts,
    route_of,
    says_something,
    scope_of,
    source_hash_function,
)
from include.extraction.listings import CleanListing
from include.settings import RoutingSettings, Settings, TaskSettings, load_settings
from tests.integration.warehouse_runs import DAY, moment

SETTINGS = load_settings()


def listing(**changes) -> CleanListing:
    values = {
        "merchant_id": "m1", "listing_id": "l1", "title": "Mug", "description": "A <b>blue</b> mug", "brand": "Acme",
        "category": "Kitchen", "locale": "en-US", "attributes": "{}", "source_updated_at": moment(DAY),
    }  # fmt: skip
    return CleanListing(**(values | changes))


def keys_of(settings=SETTINGS, **changes):
    return key_function(settings, "title")(prompt_texts(listing(**changes)))


def changed(part: str, **update):
    """Settings with one change in the title task, or in its engine profile."""
    if part == "task":
        task = TaskSettings.model_validate(SETTINGS.task("title").model_dump() | update)
        return SETTINGS.model_copy(update={"tasks": {**SETTINGS.tasks, "title": task}})
    name = SETTINGS.task("title").engine
    engine = SETTINGS.engines[name].model_copy(update=update)
    return SETTINGS.model_copy(update={"engines": {**SETTINGS.engines, name: engine}})


def test_same_prompt_shares_a_generation_whoever_sells_it():
    assert keys_of() == keys_of(merchant_id="m2", listing_id="l9", source_updated_at=moment(DAY, 1))
    assert keys_of() == keys_of(description="A blue mug")  # markup only


@pytest.mark.parametrize("field", ["title", "description", "brand", "category", "locale"])
def test_everything_that_the_prompt_uses_counts(field):
    for ours, theirs in zip(keys_of(), keys_of(**{field: "other"}), strict=True):
        assert ours != theirs


def test_fields_cannot_run_into_each_other():
    assert keys_of(title="ab", description="c") != keys_of(title="a", description="bc")


def test_model_lineage_makes_copy_stale_but_shares_the_prompt():
    other = keys_of(changed("engine", lineage="other-model"))
    assert other.staleness_key != keys_of().staleness_key
    assert other[:2] == keys_of()[:2]


def test_rows_of_one_source_hash_have_one_staleness_key():
    def hash_of(settings=SETTINGS, row=b"row"):
        return source_hash_function(settings, "title")(row)

    catalog = SETTINGS.pipeline.catalog.model_copy(update={"default_locale": "de-DE"})
    pipeline = SETTINGS.pipeline.model_copy(update={"catalog": catalog})
    different = [
        changed("engine", lineage="other"), changed("task", template="description.j2"),
        changed("task", prompt_fields=("title",)), SETTINGS.model_copy(update={"pipeline": pipeline}),
    ]  # fmt: skip
    assert len({hash_of(), hash_of(row=b"other"), *map(hash_of, different)}) == 6
    assert hash_of(changed("task", sampling_params={"temperature": 0.7})) == hash_of()


def test_engine_profile_and_sampling_rewrite_nothing():
    assert keys_of(changed("engine", batch_size=4096, engine_args={"max_num_seqs": 64})) == keys_of()
    assert keys_of(changed("task", sampling_params={"temperature": 0.7})) == keys_of()


def test_a_new_template_rewrites_everything():
    other = keys_of(changed("task", template="description.j2"))
    assert other.text_id != keys_of().text_id
    assert other.staleness_key != keys_of().staleness_key
    assert other.content_hash == keys_of().content_hash


def test_scope_follows_lineage_template_and_arms():
    assert scope_of(changed("engine", lineage="x"), "title") != scope_of(SETTINGS, "title")
    assert scope_of(changed("engine", batch_size=4096), "title") == scope_of(SETTINGS, "title")
    held = SETTINGS.model_copy(update={"pipeline": SETTINGS.pipeline.model_copy(update={"holdout_share": {"*": 0.1}})})
    assert scope_of(held, "title") != scope_of(SETTINGS, "title")


@given(st.lists(st.sampled_from(["a", "<b>", "&amp;", "; ", "  ", "\n", "R&D", "é"]), max_size=5), st.integers(0, 3))
def test_texts_told_in_one_pass_are_the_fields_plain_texts(pieces, place):
    names = ["title", "description", "brand", "category"]
    texts = dict.fromkeys(names, "Mug") | {names[place]: clean("".join(pieces))}
    found = prompt_texts(listing(**texts))
    assert {name: found[name] for name in names} == {name: plain_text(text) for name, text in texts.items()}


@pytest.mark.parametrize(
    ("title", "expected"), [("", False), ("★ – !", False), ("杯", True), ("7", True), ("___", False)]
)
def test_says_something(title, expected):
    assert says_something(prompt_texts(listing(title=title, description="")), ("title", "description")) is expected


def test_holdout_share_is_met_stable_and_nested():
    keys = [("m1", f"l{i}") for i in range(20_000)]
    tenth = {key for key in keys if in_holdout(*key, {"*": 0.1})}
    fifth = {key for key in keys if in_holdout(*key, {"*": 0.2})}
    assert 1_800 < len(tenth) < 2_200
    assert tenth < fifth
    assert not any(in_holdout(*key, {"m1": 0.0, "*": 1.0}) for key in keys[:50])
    assert all(in_holdout(*key, {"m1": 1.0}) for key in keys[:50])


def routed(share, engine="cpu-smollm2-title"):
    """Settings of a switch from `hosted`; share None is before or after it, with `engine` for every listing."""
    values = SETTINGS.model_dump()
    values["engines"]["hosted"] = {
        "name": "hosted", "kind": "openai", "model": "gpt", "lineage": "gpt", "batch_size": 4, "connection": "api",
    }  # fmt: skip
    routing = None if share is None else {"hosted": "hosted", "share": share}
    values["tasks"]["title"] |= {"engine": engine, "routing": routing}
    return Settings.model_validate(values)


def own(count, share, merchant="m1"):
    routing = RoutingSettings(hosted="hosted", share=share)
    return {f"l{i}" for i in range(count) if route_of(merchant, f"l{i}", routing) == 0}


def test_a_larger_share_only_adds_listings_and_is_met():
    tenth, third = own(1_000, {"*": 0.1}), own(1_000, {"*": 0.3})
    assert tenth < third
    for found, share in ((tenth, 0.1), (third, 0.3)):
        assert binom.ppf(0.0005, 1_000, share) <= len(found) <= binom.ppf(0.9995, 1_000, share)
    assert own(50, {"*": 1.0, "m1": 0.0}) == set()
    assert len(own(50, {"m1": 1.0})) == 50
    assert own(50, {"m2": 1.0}) == set()


def test_the_route_is_drawn_apart_from_the_holdout():
    held = [i for i in range(4_000) if in_holdout("m1", f"l{i}", {"*": 0.3})]
    ours = own(4_000, {"*": 0.3})
    both = sum(f"l{i}" in ours for i in held)
    assert binom.ppf(0.0005, len(held), 0.3) <= both <= binom.ppf(0.9995, len(held), 0.3)


def test_neither_the_start_nor_the_end_of_a_switch_makes_copy_stale():
    texts, switch = prompt_texts(listing()), routed({"*": 0.5})
    ours, theirs = (key_function(switch, "title", route)(texts) for route in (0, 1))
    assert ours == keys_of()  # without routing
    assert theirs.staleness_key == key_function(routed(None, engine="hosted"), "title")(texts).staleness_key
    assert theirs.content_hash == ours.content_hash
    assert theirs.staleness_key != ours.staleness_key
    assert theirs.text_id != ours.text_id  # equal prompts are generated once per route


def test_scope_follows_the_shares():
    scopes = {scope_of(routed(share), "title") for share in (None, {"*": 0.0}, {"*": 0.1}, {"*": 0.1, "m1": 0.2})}
    assert len(scopes) == 4
    assert scope_of(routed(None), "title") == scope_of(SETTINGS, "title")
