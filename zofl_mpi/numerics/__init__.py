"""Arithmetic shared by methods: estimates, inner loops, step sizes, projections, sets, optimisers, privacy accounts."""
