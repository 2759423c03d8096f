"""The default model's tokenizer, out of the package's GGUF file."""

from __future__ import annotations

import json

from xgrammar import TokenizerInfo, VocabType

from include.generation.model import packaged_gguf, packaged_tokenizer


def test_the_tokenizer_ends_at_the_chat_templates_mark_splits_digits_and_suits_a_grammar() -> None:
    tokenizer = packaged_tokenizer(packaged_gguf())
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.tokenize("in 1024 x") == ["in", "Ġ", "1", "0", "2", "4", "Ġx"]
    assert tokenizer.decode(tokenizer.encode("für 3 ☕ [a]")) == "für 3 ☕ [a]"
    assert json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]["type"] == "ByteLevel"
    found = TokenizerInfo.from_huggingface(tokenizer)
    assert found.vocab_type == VocabType.BYTE_LEVEL
    assert found.decoded_vocab[tokenizer.convert_tokens_to_ids("Ġ[")] == b" ["
