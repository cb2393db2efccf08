"""EAGLE drafts (EAGLE-1/2 and EAGLE-3): the module, its checkpoint layouts, loading and writing."""
