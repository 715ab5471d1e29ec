"""The rounds of a run: asked, evaluated, recorded, shown, checkpointed, ended."""
