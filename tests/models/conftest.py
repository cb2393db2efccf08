"""Tests here run tiny models on one thread."""

from tiny_models import one_thread

__all__ = ["one_thread"]
