"""Word tokenisers in the style of Moses and spaCy, as far as E2E needs them.

The rules behind the files of the LoRA code's example are unpublished; these were inferred from the files. Training and
development part have `isn 't`, the test part `is n't`. sacremoses 0.2 differs from the development file in 62 lines, in
which a sentence begins with a small letter; spaCy treats hyphens differently since 3.3.
"""

import re
from functools import cache

# --- Moses

KEPT = re.compile(r"[A-Z]|Dr|Mr|Mrs|Ms|St")
"""Words that keep their full stop: initials, and abbreviations before names, `St. John's`."""
NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.")
"""A number with a full stop; before a lower-case word the sentence goes on, as in `3 out of 5. in the`."""
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
    """Separates words and punctuation by single spaces, by the rules of the Moses tokeniser.

    English with aggressive hyphens (P. Koehn and others). A contraction is cut before its apostrophe (`isn 't`), a
    hyphen is separated only between letters or digits (`20- £ 25`), and several full stops stay together. A word's
    full stop is separated, but not a number's before a lower-case word.
    """
    words: list[str] = []
    chunks = text.split()
    for k, chunk in enumerate(chunks):
        words += _moses_words(chunk, k + 1 < len(chunks) and chunks[k + 1][0].islower())
    return " ".join(words)


@cache
def _moses_words(chunk: str, goes_on: bool) -> list[str]:
    """Words and marks of a chunk without white space; `goes_on`: a lower-case word follows."""
    spaced = f" {chunk} "
    for pattern, written in RULES:
        spaced = pattern.sub(written, spaced)
    *parts, last = spaced.split()
    end = [last] if goes_on and NUMBER.fullmatch(chunk) else _full_stop(last)
    return [word for part in parts for word in _full_stop(part)] + end


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
"""Chunks that stay whole: abbreviations, and words that look like contractions without an apostrophe."""
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
    """Separates words and punctuation by single spaces, by spaCy's rules for English before version 3.3.

    Marks are cut off the two ends of a chunk, one by one, until it is an exception or has none left. The rest is cut at
    hyphens between letters (not `5-star`) or digits (`20 - 25`), and at some other marks between letters. A contraction
    is cut before its `n't` (M. Honnibal and others).
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
    """Words of a chunk that is an exception to the general rules; () if it is none."""
    if WHOLE.fullmatch(chunk):
        return (chunk,)
    return next((match.groups() for each in CONTRACTIONS if (match := each.fullmatch(chunk))), ())
