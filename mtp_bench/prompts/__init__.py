"""Prompts: the shipped evaluation set, users' files, and a generator of training prompts; the last two never mix."""
