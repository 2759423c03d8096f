"""Distillation: a synthetic world with known truth, supervised fine-tuning and the model registry."""
