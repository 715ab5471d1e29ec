"""The arithmetic that several methods share: estimates, inner loops, step sizes, projections, sets, optimisers."""
