"""The exact search: the best tree of every size and depth, and the fastest of them."""
