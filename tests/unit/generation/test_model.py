"""The default model's tokenizer, out of the package's GGUF file."""

from __future__ import annotations

import json

import pytest
from tokenizers import decoders, pre_tokenizers
from transformers import AutoTokenizer

from include.generation.model import packaged_gguf, packaged_tokenizer


def test_what_transformers_reads_wrongly_out_of_the_file_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its version 5.17 read it: another family's decoder, another mark at the end, digits left together."""
    read = AutoTokenizer.from_pretrained

    def wrongly(*args: object, **options: object) -> object:
        tokenizer = read(*args, **options)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        tokenizer.eos_token = "<|im_start|>"
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", wrongly)
    tokenizer = packaged_tokenizer(packaged_gguf())
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.tokenize("in 1024 x") == ["in", "Ġ", "1", "0", "2", "4", "Ġx"]
    assert tokenizer.decode(tokenizer.encode("für 3 ☕ [a]")) == "für 3 ☕ [a]"
    assert json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]["type"] == "ByteLevel"
