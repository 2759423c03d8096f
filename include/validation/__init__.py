"""Validation: deterministic validators with reason codes, and the aggregate that the gate's suite runs on."""

from importlib import import_module

# From "no usable answer" to matters of style: the first reason of a rejected row is the one that it is counted under. All are
# imported here, in this order, since a validator registers itself when its module is imported.
MODULES = ("answers", "characters", "leaks", "injection", "markup", "repetition", "languages", "facts", "lengths")

for _name in MODULES:
    import_module(f"{__name__}.{_name}")
