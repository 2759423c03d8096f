"""A model folder of Qwen3-4B's shape without weights, for timing: speed does not depend on the weights' values.

`load_format: dummy` fills the weights with random numbers. The tokenizer is the default model's, its vocabulary filled up
to the shape's size, so that every token that a random model picks has a text.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from include.generation.model import DEFAULT_MODEL

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make(folder: Path, tokenizer: Path = DEFAULT_MODEL) -> Path:
    """Writes the folder unless it is there, and returns it. Raises FileNotFoundError without the default model."""
    if (folder / "config.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER:
        shutil.copy(tokenizer / name, folder / name)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"<filler{n}>": n for n in range(len(vocabulary), int(QWEN3_4B["vocab_size"]))}  # type: ignore[call-overload]
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(QWEN3_4B, indent=2))
    return folder
