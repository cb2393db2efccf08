"""vLLM's CPU build as an arm of a bench, in a process of its own."""
