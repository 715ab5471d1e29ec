"""Parts of a round that several methods share."""
