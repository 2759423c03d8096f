"""Supervised fine-tuning of one task model with TRL and PEFT, on GPUs where there are any."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from include.distillation.pairs import held_out, read_jsonl

log = logging.getLogger(__name__)

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # every linear layer of a block


class Recipe(BaseModel):
    """How one task model is trained; the defaults made the adapters of this project."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_model: str = ".models/smollm2-135m-instruct"
    base_name: str = "HuggingFaceTB/SmolLM2-135M-Instruct"  # written to the adapter in place of a local path
    full: bool = False  # all weights instead of LoRA
    start_from: str = ""  # an adapter to train further, when only the data changed
    rank: int = 16
    alpha: int = 32
    learning_rate: float = 1e-3
    epochs: float = 1.0
    batch_size: int = 64
    accumulate: int = 1
    max_tokens: int = 1024
    max_steps: int = -1
    evaluations: int = 6
    patience: int = 3  # evaluations without a lower held-out loss before training stops
    held_out_share: float = 0.02
    held_out_rows: int = 512
    workers: int = 4
    bf16: bool = False  # always on with a GPU
    seed: int = 17


def load_pairs(path: Path, recipe: Recipe) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and held-out pairs, split by group. Raises ValueError when either part would be empty."""
    train: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for row in read_jsonl(path):
        part = kept if held_out(str(row["group"]), recipe.held_out_share) else train
        part.append({"prompt": row["prompt"], "completion": row["completion"]})
    if not train or not kept:
        raise ValueError(
            f"{path}: {len(train)} training and {len(kept)} held-out pairs; the split is by group (merchant), so give "
            "pairs of more merchants or raise held_out_share"
        )
    return train, kept[: recipe.held_out_rows]


def train(pairs: Path, out: Path, recipe: Recipe) -> dict[str, Any]:
    """Trains on a JSON Lines file of pairs and writes the adapter (or the full model) to `out`.

    Returns the metrics: losses over time, steps, seconds, tokens. Raises ValueError for an unusable file of pairs.
    """
    import torch
    from datasets import Dataset
    from peft import LoraConfig, PeftModel
    from peft.helpers import disable_input_dtype_casting
    from transformers import AutoModelForCausalLM, AutoTokenizer, EarlyStoppingCallback
    from trl import SFTConfig, SFTTrainer

    train_rows, held_out_rows = load_pairs(pairs, recipe)
    cuda = torch.cuda.is_available()
    bf16 = cuda or recipe.bf16
    tokenizer = AutoTokenizer.from_pretrained(recipe.base_model)
    model = AutoModelForCausalLM.from_pretrained(recipe.base_model, dtype=torch.bfloat16 if bf16 else torch.float32)
    if recipe.start_from:
        model = PeftModel.from_pretrained(model, recipe.start_from, is_trainable=True)
    steps = len(train_rows) * recipe.epochs / (recipe.batch_size * recipe.accumulate)
    if recipe.max_steps > 0:
        steps = min(steps, recipe.max_steps)
    every = max(1, int(steps / recipe.evaluations))
    arguments = SFTConfig(
        output_dir=str(out / "checkpoints"),
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=recipe.batch_size,
        gradient_accumulation_steps=recipe.accumulate,
        num_train_epochs=recipe.epochs,
        max_steps=recipe.max_steps,
        learning_rate=recipe.learning_rate if not recipe.full else recipe.learning_rate / 20,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, int(steps * 0.04)),
        bf16=bf16,
        gradient_checkpointing=False,
        train_sampling_strategy="group_by_length",
        max_length=recipe.max_tokens,
        completion_only_loss=True,
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        logging_steps=max(1, every // 4),
        report_to="none",
        dataset_num_proc=recipe.workers if recipe.workers > 1 else None,
        seed=recipe.seed,
        use_cpu=not cuda,
        disable_tqdm=True,
    )
    adapter = LoraConfig(
        r=recipe.rank, lora_alpha=recipe.alpha, lora_dropout=0.0, target_modules=list(LINEAR), task_type="CAUSAL_LM"
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(train_rows),
        eval_dataset=Dataset.from_list(held_out_rows),
        processing_class=tokenizer,
        peft_config=None if recipe.full or recipe.start_from else adapter,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=recipe.patience)],
    )
    started = time.monotonic()
    # Autocast handles the float32 adapter weights; PEFT's own casting of every layer's input would cost a third more.
    with disable_input_dtype_casting(trainer.model, active=bf16 and not recipe.full):
        trainer.train()
    seconds = time.monotonic() - started
    history = [
        {k: v for k, v in row.items() if k in ("step", "loss", "eval_loss")} for row in trainer.state.log_history
    ]
    metrics = {
        "train_pairs": len(train_rows),
        "held_out_pairs": len(held_out_rows),
        "steps": trainer.state.global_step,
        "seconds": round(seconds, 1),
        "tokens": max((int(float(row.get("num_tokens", 0))) for row in trainer.state.log_history), default=0),
        "best_eval_loss": trainer.state.best_metric,
        "history": [row for row in history if len(row) > 1],
        "device": torch.cuda.get_device_name() if cuda else "cpu",
    }
    trainer.save_model(str(out))
    if recipe.full:
        tokenizer.save_pretrained(str(out))
    else:
        _shrink(out, recipe)
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2))
    log.info(
        "trained %d steps in %.0f s, held-out loss %.4f: %s",
        metrics["steps"],
        seconds,
        metrics["best_eval_loss"] or 0,
        out,
    )
    return metrics


def _shrink(out: Path, recipe: Recipe) -> None:
    """The adapter in bfloat16, with the public name of its base model."""
    import torch
    from safetensors.torch import load_file, save_file

    path = out / "adapter_model.safetensors"
    save_file(
        {k: v.to(torch.bfloat16).contiguous() for k, v in load_file(str(path)).items()}, str(path), {"format": "pt"}
    )
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = recipe.base_name
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
