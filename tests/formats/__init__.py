"""Results and checkpoints of earlier versions, which every later 1.x opens, draws and continues with the same bits."""
