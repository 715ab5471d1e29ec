"""`Texts`: the flags of a data set of texts and of its division among clients."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from zofl_mpi.data import Federation, bpe, e2e, lines, published, texts
from zofl_mpi.data.bpe import Vocabulary
from zofl_mpi.engine.fields import at_least
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import World, run_or_fail_all
from zofl_mpi.errors import UserError
from zofl_mpi.paths import user_path
from zofl_mpi.settings.samples import cached, found_once_a_node, warn_left_out


@final
@dataclass(frozen=True)
class Corpus:
    """Texts, divided among clients; the server has none."""

    federation: Federation
    vocabulary: Vocabulary
    division: str  # description of the shared training texts, for the record
    files: tuple[Path, ...]  # training, validation and test part, or one of lines
    pipeline: e2e.Pipeline
    choices: int = 1  # completions of each text


@final
@dataclass(frozen=True)
class Texts:
    """A data set of texts and its partition among clients. The test part of E2E is testset_w_refs.csv.

    Attributes:
        data: e2e; a folder with trainset.csv, devset.csv and testset_w_refs.csv in E2E's format (columns mr and ref);
            or FILE.jsonl, on each line a context and a completion, or a choice of completions.
        data_dir: folder with e2e/ and gpt2-bpe/, or with their files; default: $ZOFL_DATA, else the user's cache.
        text: format of E2E: official (as in the files) or tokenised (as in the codes of LoRA and SplitLoRA: Moses's
            rules; spaCy's for the test part).
        vocabulary: auto (the model's own tokeniser; for a GPT-2 without one gpt2), gpt2 (all 50,257 tokens), or e2e
            (the tokens of gpt2 in the data, renumbered; for tiny models).
        m: number of clients.
        alpha: Dirichlet concentration of the clients' classes (types of meaning representations), above 0; inf for iid.
        partition: clients' texts: by_class (each class is spread over the clients), by_mix (each client draws its mix;
            equal sizes) or natural (by the clients named in the lines; --m is not used).
        min_samples: minimum samples of a client; the partition is redrawn until it holds.
        part: training contexts: all, pretrain (half of them, the same for all seeds) or finetune (the other half).
        validation: dev (report devset.csv beside the test part) or none.
    """

    data: str = "e2e"
    data_dir: str = ""
    text: Literal["official", "tokenised"] = "tokenised"
    vocabulary: Literal["auto", "gpt2", "e2e"] = "auto"
    m: int = at_least(1, 3, "a number of clients")
    alpha: float = math.inf
    partition: Literal["by_class", "by_mix", "natural"] = "by_class"
    min_samples: int = at_least(1, 10, "a number of samples")
    part: Literal["all", "pretrain", "finetune"] = "all"
    validation: Literal["dev", "none"] = "dev"

    def corpus(
        self, world: World, streams: Streams, most: int | None = None, of_model: Vocabulary | None = None
    ) -> Corpus:
        """The texts, encoded once per node, and their partition among clients.

        UserError, on every rank: a file is missing or damaged on one, a flag is out of range, or a text is too long.

        Args:
            most: maximum tokens of the model's context; longer texts are refused.
            of_model: the model's own tokens; None: it has none.
        """
        data_dir = user_path(self.data_dir, "--data-dir") if self.data_dir else published.default_data_dir()
        files = run_or_fail_all(world, lambda: self._files(data_dir))
        own = of_model if self.vocabulary == "auto" else None
        tokens: texts.Tokens = "model" if own else "e2e" if self.vocabulary == "e2e" else "gpt2"
        vocabulary = own or Vocabulary(run_or_fail_all(world, lambda: bpe.find_vocabulary(data_dir)))
        stored = found_once_a_node(world, lambda: texts.sources(self.data, files, vocabulary, self.text, tokens))
        raw = cached(world, stored)

        def shared() -> Corpus:
            if most is not None:
                texts.check_lengths(raw, most, files, self.text)
            rows, division = texts.training_rows(raw, self.part)
            shares = {name: vars(self)[name] for name in ("m", "alpha", "partition", "min_samples")}
            federation = texts.shared_out(raw, rows, streams, self.validation == "dev", **shares)
            if world.rank == 0 and raw.clients is not None and self.partition == "natural":
                warn_left_out(raw, raw.clients[rows], raw.clients, federation, self.min_samples)
            kept = vocabulary if tokens != "e2e" or raw.tokens is None else vocabulary.keeping(raw.tokens)
            if len(files) == 1:
                return Corpus(federation, kept, division, files, self.text, choices=raw.classes)
            return Corpus(federation, kept, division + e2e.RULES[self.text], files, self.text)

        return run_or_fail_all(world, shared)

    def _files(self, data_dir: Path) -> tuple[Path, ...]:
        """The three CSV files, or the file of lines."""
        if self.data.endswith(lines.SUFFIX):
            return (user_path(self.data, "--data"),)
        if self.data == "e2e":
            return published.find_data_set("e2e", e2e.FILES, data_dir)
        paths, lacking = published.find_files(e2e.FILES, [user_path(self.data, "--data")])
        if lacking:
            raise UserError(
                f"--data {self.data}: it must be e2e, FILE.jsonl, or a folder with {', '.join(e2e.FILES)}; there is no "
                f"{', '.join(lacking)} in it (a path is relative to {Path.cwd()})"
            )
        return paths
