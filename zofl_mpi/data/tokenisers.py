"""Two tokenisers of English texts, as far as E2E's need them: Moses's and spaCy's.

The rules behind the files in the LoRA code's example are not published. These were found by comparison with the files:
`isn 't` is in the training and the development part, `is n't` in the test part. sacremoses 0.2 differs from the file of
the development part in 62 lines, in which a sentence begins with a small letter; spaCy has other hyphens since 3.3.
"""

import re
from functools import cache

# --- Moses

KEPT = re.compile(r"[A-Z]|Dr|Mr|Mrs|Ms|St")
"""Words that keep their full stop: initials, and the abbreviations before names, `St. John's`."""
NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.")
"""A number with a full stop. A word in lower case behind it goes on with the sentence, as in `3 out of 5. in the`."""
RULES = tuple(
    (re.compile(pattern), written)
    for pattern, written in (
        (r"[^\w\s.'`,-]|_", r" \g<0> "),  # marks other than these
        (r"([^\W_])-(?=[^\W_])", r"\1 - "),  # a hyphen between two letters or digits, not one beside a space
        (r"\.{2,}", r" \g<0> "),
        (r"(?<=\D),|,(?=\D)", " , "),  # not within 5,300
        (r"(?<![^\W_])'|'(?![^\W\d_])", " ' "),  # quotes
        (r"(?<=[^\W\d_])'(?=[^\W\d_])|(?<=\d)'(?=s)", " '"),  # it 's, isn 't, 1990 's
    )
)


def moses(text: str) -> str:
    """The words and punctuation marks of a text with one space between them, by the rules of the Moses tokeniser.

    The rules are those for English with aggressive hyphens, by P. Koehn and others. A contraction is cut before its
    apostrophe (`isn 't`), and a hyphen stands apart between letters or digits only (`20- £ 25`). Several full stops
    stay together. The full stop of a word goes apart, except of a number before a word in lower case.
    """
    words: list[str] = []
    chunks = text.split()
    for k, chunk in enumerate(chunks):
        parts = _moses_parts(chunk)
        goes_on = NUMBER.fullmatch(chunk) and k + 1 < len(chunks) and chunks[k + 1][0].islower()
        for last, part in enumerate(parts, 1 - len(parts)):
            words += [part] if goes_on and last == 0 else _full_stop(part)
    return " ".join(words)


@cache
def _moses_parts(chunk: str) -> tuple[str, ...]:
    """The parts of a chunk between white space; a full stop at its end stays on its word."""
    spaced = f" {chunk} "
    for pattern, written in RULES:
        spaced = pattern.sub(written, spaced)
    return tuple(spaced.split())


def _full_stop(word: str) -> list[str]:
    bare = word[:-1]
    apart = word.endswith(".") and bare.strip(".") and not KEPT.fullmatch(bare)
    return [bare, "."] if apart and not ("." in bare and re.search(r"[^\W\d_]", bare)) else [word]


# --- spaCy

LETTER = r"[^\W\d_]"
CURRENCY = "$£€¥"
MARKS = re.escape("…,:;!?¿¡()[]{}<>_#*&'\"”“`‘´’‚„»«")
PREFIX = re.compile(rf"[§%=—–{MARKS}{CURRENCY}]|\+(?!\d)|\.{{2,}}")
SUFFIX = re.compile(
    rf"(?:['’][sS]|[—–{MARKS}]|\.{{2,}}|(?<=\d)(?:[+%{CURRENCY}]|km|lb|m)"
    rf"|(?<=[\d%²+\-{MARKS}])\.|(?<=[a-zà-öø-ÿ])\.|(?<=[A-Z][A-Z])\.)$"
)
INFIX = re.compile(
    rf"(\.{{2,}}|…|(?<=\d)[+\-*^](?=[\d-])|(?<=[a-zà-öø-ÿ'\"’”])\.(?=[A-Z'\"‘“])|(?<={LETTER}),(?={LETTER})"
    rf"|(?<={LETTER})(?:---?|[-–—~])(?={LETTER})|(?<=[^\W_])[:<>=/](?={LETTER}))"
)
WHOLE = re.compile(r"(?:[ap]\.m|Dr|Mr|Mrs|Ms|St|vs|e\.g|i\.e|[a-z])\.|were|Were|well|Well")
"""Chunks that stay as they are: abbreviations, and words that a contraction without its apostrophe would be."""
CONTRACTIONS = tuple(
    re.compile(pattern)
    for pattern in (
        r"((?i:ai|are|ca|could|did|do|does|had|has|have|is|might|must|need|should|was|were|wo|would))(n[’']?t)",
        r"((?i:i|you|he|she|it|we|they|who|what|when|where|why|how|there|that|this))([’'](?:ll|d|ve|re|m|s))",
        r"((?i:you|we|they|who|what|when|where|why|how|there|that))(re|ve|ll|s)",
        r"([cC]an)(not)",
        r"(\d+)([ap]m)",
    )
)


def spacy(text: str) -> str:
    """The words and punctuation marks of a text with one space between them, by the rules of spaCy for English.

    The rules are those before version 3.3, by M. Honnibal and others. Marks leave the two ends of a chunk between white
    space one by one, until it is an exception or none is left. The rest is cut at hyphens between letters (not
    `5-star`), between digits (`20 - 25`), and at some other marks between letters. A contraction is cut before `n't`.
    """
    return " ".join(part for chunk in text.split() for part in _spacy_parts(chunk))


@cache
def _spacy_parts(chunk: str) -> tuple[str, ...]:
    before, after = list[str](), list[str]()
    while chunk and not (words := _exception(chunk)):
        prefix, suffix = PREFIX.match(chunk), SUFFIX.search(chunk)
        if prefix:
            before.append(prefix[0])
            chunk = chunk[prefix.end() :]
        elif suffix:
            after.append(suffix[0])
            chunk = chunk[: suffix.start()]
        else:
            words = tuple(filter(None, INFIX.split(chunk)))
            break
    return (*before, *(words if chunk else ()), *reversed(after))


def _exception(chunk: str) -> tuple[str, ...]:
    """The words of a chunk that is an exception to the general rules; none where the rules hold."""
    if WHOLE.fullmatch(chunk):
        return (chunk,)
    return next((match.groups() for each in CONTRACTIONS if (match := each.fullmatch(chunk))), ())
