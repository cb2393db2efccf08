"""vLLM's ``speculative_token_tree``: a Python literal of tuples in a string, read only (removed after vLLM 0.20.2)."""

from __future__ import annotations

import ast
import json

from mtp_bench.engines.base import Imported, Importer
from mtp_bench.engines.medusa import tree_from_paths
from mtp_bench.errors import InputError

KEY = "speculative_token_tree"
# A tree of thousands of nodes is still far shorter; Python's parser may crash on very long hostile input.
MAX_CHARACTERS = 1_000_000


def parse_token_tree(text: str, where: str, complete_prefixes: bool = False) -> Imported:
    """Read the literal as it stands, as a JSON string, or inside a ``--speculative-config`` object.

    The text is parsed as a literal and never evaluated.

    Raises:
        InputError: not such a literal.
        TopologyError: listing every defect of the paths.
    """
    literal = _literal_text(text.strip())
    try:
        if len(literal) > MAX_CHARACTERS:
            raise ValueError(f"{len(literal)} characters are too many for a tree")
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        fix = "expected a literal such as [(0,), (1,), (0, 0)]"
        raise InputError(f"not a list of tuples: {error}", where=where, fix=fix) from error
    return tree_from_paths(value, where, complete_prefixes)


def _literal_text(text: str) -> str:
    """Unwrap the JSON around the literal, if there is any."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict):
        value = value.get(KEY, value)
    return value if isinstance(value, str) else text


IMPORTER = Importer("vllm", parse_token_tree)
