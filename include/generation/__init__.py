"""Generation: prompts in, answers of one vLLM engine per task model out."""
