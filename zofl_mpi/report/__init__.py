"""One page about one run or several: a self-contained HTML file, a figure for a paper, or a table in the terminal."""
