"""Hydra's grounded heads: the module and loading."""
