"""Contexts of a data set of texts for a model to write to, each with its references."""

from dataclasses import dataclass
from typing import Literal, final

from zofl_mpi.data import e2e
from zofl_mpi.settings.texts import Corpus


@final
@dataclass(frozen=True)
class Prompt:
    """A context to write a text for.

    Attributes:
        tokens: of the context and its end.
        context: in words.
        references: the texts that people wrote for it, by the rules of its part.
    """

    tokens: tuple[int, ...]
    context: str
    references: tuple[str, ...]


def prompts(corpus: Corpus, part: Literal["validation", "test"] = "test", most: int = 0) -> list[Prompt]:
    """The first `most` contexts (0: all) of a part in the order of its file, each with all its references."""
    number = 1 if part == "validation" else 2
    contexts = e2e.contexts(e2e.read(corpus.files[number], corpus.pipeline, number))
    found = list(contexts)[: most or None]
    tokens, end = corpus.vocabulary.encode(found), corpus.vocabulary.end
    return [Prompt((*own, end), one, tuple(contexts[one])) for own, one in zip(tokens, found, strict=True)]
