"""Medusa heads: the module, its checkpoint layouts, loading and writing."""
