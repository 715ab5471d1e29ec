"""From flags to a `Setting`: the data sets and the problems that a command line can name, family by family."""
