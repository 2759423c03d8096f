"""Request files of OpenAI's Batch API: run on our own engine, and written for the hosted one."""
