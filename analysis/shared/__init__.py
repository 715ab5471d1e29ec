"""What the scripts of this folder share. They import it from beside them: `from shared import figures`."""
