"""Judging: a seeded sample read by an LLM judge, and the statistical gate."""
