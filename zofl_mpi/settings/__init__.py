"""Data sets and problems of the command lines, by family: from flags to a `Setting`."""
