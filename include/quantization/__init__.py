"""Quantized checkpoints of a task model, calibrated on the prompts that it answers at night."""
