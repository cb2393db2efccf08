"""Trees that an engine can load: its rules, and the best tree within them."""
