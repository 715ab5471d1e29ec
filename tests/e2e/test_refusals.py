"""Command lines that are refused: exit status 2 and one sentence, which has these words; no result is begun.

A row is what is typed behind the group's command, and words of the sentence. What a refusal needs of a file, of ranks
or of a class of one's own stands beside that; the ranges that flags declare: tests/unit/test_ranges.py.
"""

from pathlib import Path

import pytest

from tests.conftest import Capsys
from tests.launch import refused

ELSEWHERE = "is no flag of this method on this problem; it belongs to"
SPLIT = "heron_sfl --data digits --m 3 --batch 64 --rounds 1"
PRIVATE = "zo_hfl --method fedavg --weights uniform --clip 1"
TABLE = {
    "zo_hfl": f"""
    --dtype float16 => --dtype float16: must be one of float32, float64
    --alpha 0 => --alpha 0.0: must be a Dirichlet concentration above 0
    --server-fraction 0 => --server-fraction 0: the server has no samples for --method
    --tau 1 2 => must be one number, or 10, one for each client (--m)
    --tau 1e18 => --tau 1e+18: must be a number of local steps, at least 0 and at most 1e9
    --personal --personal-tau 1e18 --method ditto => must be a number of local steps, at least 0 and
    --batch 1000000000000 => --batch 1000000000000: the samples of one step take
    --method fedavg --server-batch 1000000000000 --gamma 1 => --server-batch 1000000000000: the samples
    --eta 0 => --eta 0.0: must be a smoothing radius above 0
    --schedule fast => --schedule 'fast': allowed are constant, sqrt, harmonic
    --schedule-h harmonic => --schedule-h harmonic: must be one of sqrt, constant
    --exchange all => --exchange all: must be one of scalars, solutions
    --balance => unknown flag --balance
    --rounds {"9" * 30} => --rounds {"9" * 30}: must be a whole number
    --rounds 1000000001 => --rounds 1000000001: must be a whole number, at least 1 and at most 1000000000
    --m {"9" * 5000} => --m {"9" * 60}...: must be a whole number
    --problem features --pixels raw => --pixels raw: must be unit
    --problem mlp --hidden 5 0 => --hidden 5 0: must be whole numbers, at least 1
    --problem toy --m 0 => --m 0: must be a whole number, at least 1
    --data digit => --data digit: there is no such data set; it must be one of digits, mnist,
    --method fedavg --lam 1 => --lam {ELSEWHERE} --problem softmax
    --method fedavg --option I => --option {ELSEWHERE} --method scaffold
    --method ditto --server-rule adam => --server-rule {ELSEWHERE} --method fedavg, --method fedprox, --method
    --method fedavg --server-rule adamw => --server-rule adamw: must be one of sgd, momentum, adagrad, adam
    --method scaffold --option III => --option III: must be one of I, II
    --method fedavg --weights sizes => --weights sizes: must be one of size, uniform
    --deadline 3 => --deadline 3.0: must be 0 without --devices
    --track mlflow => --track mlflow: must be tensorboard or
    --track tensorboard: => must be
    --clip 0 => --clip 0.0: must be none or a norm above 0
    --epsilon 1 => --epsilon 1.0: must be none without --clip C, a norm
    --participation poisson => --participation poisson: must be fixed without --clip C, a norm
    --method fedavg --clip 1 => --weights size: must be uniform with --clip: a client's weight tells how
    --clip 1 --exchange solutions => --exchange solutions: must be scalars with --clip: a client's solutions
    --clip 1 --mechanism laplace --delta 0.1 => --delta 0.1: must be left out: --mechanism laplace has no delta
    --clip 1 --devices phones => --devices with --clip: who is off, late or too small depends on a client
    --method server_sgd --clip 1 => --clip {ELSEWHERE} --method zo_hfl
    --compress topk:0.1 => of ZOHFL's clients are scalars, or counted from one another: no vectors to compress
    """,
    PRIVATE: """
    --epsilon 1 --delta 1 => --delta 1.0: must be a probability from 1e-12 to below 1
    --epsilon 1 --m 1 => --delta 1.0: must be a probability from 1e-12 to below 1 (auto is 1/m^1.1, for two clients
    --delta 0 => --delta 0.0: must be auto or a probability above 0
    --noise-multiplier 1 --epsilon 1 => one follows from the other; give one
    --compress topk:0.1 => --compress topk:0.1: must be none with --clip: what error
    --trust nobody => needs clients that send scalars
    --aggregate median => --aggregate median: must be mean with --clip: the account is that
    --attackers 0.2 => --attackers 0.2: must be 0 with --clip: the account is that of a sum of honest
    """,
    "fedrzo": """
    --x-set ball:1 ball:2 => one set for all, or one for each of the 5 clients, not 2
    --problem fair => --method fedrzo_nn needs a Lipschitz problem; --problem fair offers Bilevel
    --method fedrzo_bl --problem fair --lower fedac2 => gamma_l mu_h = 1, it must be below 1
    --method fedrzo_bl --problem bilevel_bowls --lower fedac2 --gamma-lower 100 => FedAC needs at most 1/L_h
    --method fedrzo_bl --lower newton => --lower newton: must be one of local_sgd, fedac1, fedac2, lfd, exact
    --method fedrzo_bl --problem fair --probe 3 => --probe 3: must be 0 without --exact
    --method fedrzo_bl --problem hyperparameter --held-out 0 => --held-out 0.0: must be between 0 and 1, both excluded
    --method fedrzo_bl --problem hyperparameter --held-out 1 => --held-out 1.0: must be between 0 and 1, both excluded
    --method fedrzo_bl --problem fair --T-lower auto --devices silos => --T-lower auto takes as many local steps as L_h
    --method scaffnew --devices phones => asks all clients in every round, and there is a device that is not always av
    --method fedrzo_bl --clip 1 => --method scaffnew; replies leave this method's clients as they are
    --method scaffnew --clip 1 => --clip 1: the account needs who takes part, and Scaffnew has no `sampling:
    """,
    "heron_sfl": """
    --problem softmax => must be one of split_cnn, split_resnet, split_mlp, split_lm, or module:Class
    --method sflv2 --clip 1 => --method fedkseed; smashed activations and labels leave this method's clients as they
    --problem split_resnet --width 2 --method decomfl --clip 1 => --clip: BatchNorm's running statistics leave a client
    --method decomfl --clip 1 --norm group --weights size => --weights size: must be uniform with --clip
    --method decomfl --compress topk:0.1 => unknown flag --compress
    """,
    f"{SPLIT} --problem split_resnet --width 2 --stages 1 1": """
    --batch 600 => --batch 600: must be at most 539, the samples of the smallest client
    --stages 1 1 1 1 --batch 1 => --batch 1: every batch has one sample, which BatchNorm cannot normalise
    --stages 1 1 1 1 1 => --stages: 5 stages need images of at least 16 pixels a side, not 8
    --k 0 => --k 0: must be a whole number, at least 1
    --method sflv1 --k 2 => --k 2: must be 1: the server answers every mini-batch
    --method decomfl --h 0 => --h 0: must be at least 1: the scalars of equally many steps are averaged
    --method fedkseed --optimiser adam => --optimiser adam: must be sgd: the model is made from sums of plain SGD
    --method fedkseed --momentum 0.5 => --momentum 0.5: must be 0: the model is made from sums of plain SGD's
    --method fedkseed --weight-decay 0.5 => --weight-decay 0.5: must be 0: the model is made from sums of plain
    --method fsl_sage --stages 1 1 1 1 --buffer 1 => --buffer 1: must be at least 2: BatchNorm
    """,
}
ROWS = [
    pytest.param(command, *map(str.strip, line.split(" => ")), id=f"{command.split()[0]} {line.split(' =>')[0][4:60]}")
    for command, lines in TABLE.items()
    for line in lines.splitlines()
    if line.strip()
]


@pytest.mark.parametrize(("command", "typed", "words"), ROWS)
def test_a_command_line_that_cannot_be_is_refused_in_one_sentence(
    capsys: Capsys, command: str, typed: str, words: str
) -> None:
    """Mutations: a flag that is taken and not read; a bound on the wrong side; a traceback; a result that is begun."""
    family, *usual = command.split()
    assert words in refused(capsys, f"zofl_mpi.{family}", *usual, *typed.split())
    assert list(Path().rglob("*.h5")) == []
