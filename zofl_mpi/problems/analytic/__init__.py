"""Test problems with solutions in closed form, in float64."""
