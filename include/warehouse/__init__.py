"""Warehouse: the ads warehouse's tables, lookups of current copy, and the staged, idempotent load."""
