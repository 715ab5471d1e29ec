"""Colours of all figures: Okabe and Ito's palette, safe for the colour-blind, with one colour per quantity."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
BLACK, SKY, YELLOW, GREY = "#000000", "#56B4E9", "#E69F00", "#BBBBBB"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, BLACK, SKY, YELLOW)
"""Colours of lines, in order."""
SECONDS = {"compute": BLUE, "wait": GREY, "comm": ORANGE, "staging": GREEN}
"""Colours of a rank's seconds, by kind."""
BYTES = {"down": SKY, "up": PURPLE}
"""Colours of bytes to the clients and to the server."""
