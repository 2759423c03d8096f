"""A trained adapter writes: copies of world listings, for the judge's training data and a quick check after training."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from include.distillation import merchants
from include.distillation.pairs import Rewrite, check_rewrite, writer_prompt
from include.distillation.world import Split

log = logging.getLogger(__name__)
MAX_NEW_TOKENS = {"title": 40, "description": 160}


class Writer:
    """The base model with one adapter merged, answering chat prompts in batches through transformers."""

    def __init__(self, base_model: str, adapter: Path | None) -> None:
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = AutoTokenizer.from_pretrained(base_model, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        model: Any = AutoModelForCausalLM.from_pretrained(base_model, dtype=dtype)
        if adapter is not None:
            model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
        self.model = model.to(self.device).eval()

    def answer(
        self, prompts: Sequence[Any], max_new_tokens: int, temperature: float = 0.0, batch: int = 0
    ) -> list[str]:
        """One answer per prompt, in order; prompts of like length go together."""
        import torch

        batch = batch or (1024 if self.device == "cuda" else 16)
        texts = [self.tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        answers = [""] * len(texts)
        sampling: dict[str, Any] = (
            {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        )
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            inputs = self.tokenizer(
                [texts[i] for i in part], return_tensors="pt", padding=True, add_special_tokens=False
            ).to(self.device)
            with torch.no_grad():
                output = self.model.generate(
                    **inputs, max_new_tokens=max_new_tokens, pad_token_id=self.tokenizer.pad_token_id, **sampling
                )
            found = self.tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            for i, text in zip(part, found, strict=True):
                answers[i] = text.strip()
        return answers


def rewrite_world(
    writer: Writer, task: str, split: Split, count: int, seed: int, temperatures: Sequence[float]
) -> list[Rewrite]:
    """Copies of `count` listings, spread over the temperatures."""
    made: list[Rewrite] = []
    sources = list(merchants.examples(seed, count, split))
    for index, temperature in enumerate(temperatures):
        part = sources[index :: len(temperatures)]
        started = time.monotonic()
        answers = writer.answer(
            [writer_prompt(task, listing) for listing, _ in part], MAX_NEW_TOKENS[task], temperature
        )
        found = [Rewrite(task, listing, product, text) for (listing, product), text in zip(part, answers, strict=True)]
        seconds = time.monotonic() - started
        log.info("%s, %s, temperature %.1f: %d copies in %.0f s", task, split, temperature, len(found), seconds)
        for locale in sorted({r.listing.locale for r in found}):
            checked = [(r.text, check_rewrite(r)) for r in found if r.listing.locale == locale]
            faithful, named = (
                sum(map(bool, column)) / len(checked)
                for column in zip(*((c.faithful, not c.omitted) for _, c in checked), strict=True)
            )
            words = sum(len(text.split()) for text, _ in checked) / len(checked)
            log.info("  %s: faithful %.3f, product named %.3f, words %.1f", locale, faithful, named, words)
        made += found
    random.Random(seed).shuffle(made)  # noqa: S311
    return made
