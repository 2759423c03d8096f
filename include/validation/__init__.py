"""Validation: deterministic validators with reason codes, and the aggregate that the gate's suite runs on."""
