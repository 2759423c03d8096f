"""What each scheme does to a model: recipes of llm-compressor. Light, since the DAG lists the schemes."""

from __future__ import annotations

from typing import Any

_LINEAR = {"targets": ["Linear"], "ignore": ["lm_head"]}  # the head decides between words: it stays as it is
# llm-compressor's modifiers in their order. "fp8" scales a layer's inputs token by token as they come, "fp8-static" by one number.
# The smoothing is that of its own W8A8 example, above the paper's 0.5.
SCHEMES: dict[str, dict[str, dict[str, Any]]] = {
    "fp8": {"QuantizationModifier": {"scheme": "FP8_DYNAMIC", **_LINEAR}},
    "fp8-static": {"QuantizationModifier": {"scheme": "FP8", **_LINEAR}},
    "w8a8": {"SmoothQuantModifier": {"smoothing_strength": 0.8}, "GPTQModifier": {"scheme": "W8A8", **_LINEAR}},
    "w4a16": {"GPTQModifier": {"scheme": "W4A16", **_LINEAR}},
    "w4a16-awq": {
        "AWQModifier": {"duo_scaling": "both"},
        "QuantizationModifier": {"scheme": "W4A16_ASYM", **_LINEAR},
    },
    "nvfp4": {"QuantizationModifier": {"scheme": "NVFP4", **_LINEAR}},
}
