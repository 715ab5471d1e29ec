"""The methods that the papers' own are compared with: one file an idea, each with its citation."""
