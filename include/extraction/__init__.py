"""Extraction: what is new or changed in the merchant catalog, cleaned, keyed and cut into shards and bins."""
