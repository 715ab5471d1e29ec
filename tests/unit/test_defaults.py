"""The default of every flag, stated once: commands on the pages leave most flags out, and mean these."""

from collections import defaultdict

from tests.unit.test_ranges import every_flag

DEFAULTS = """
Adaptation: pretrained=, shift=('clean',), trainable=all
Caps: cost=1.1, level=3.0, m=10, n=4
ClientSamples: alpha=inf, data=digits, data_dir=, features=all, m=5, min_samples=10, partition=by_class, pixels=unit,
    server_fraction=0.0, server_lacks=0, server_samples=0, split=random, synthetic_classes=10, synthetic_features=64,
    synthetic_samples=10000, test_fraction=0.1, validation=0.0
Compression: compress=none
ConvNet: channels=(16, 32, 32, 64), cut=3, head=linear, norm=group, strides=(2, 2, 1, 2)
Corner: m=10, n=8
Coupled: m=5, order=min-max
DeComFL: distribution=gaussian, draw=device, estimate=one-sided, mu=0.001, n_p=16 (paper: 1)
Ditto: lam_p=0.1
Estimation: directions=global, distribution=sqrt_d_sphere, draw=device, estimate=one-sided, exact_layers=0, mu=0.001,
    n_p=1, probe_gradient=False, rest=estimated, uplink=dense
FSLSAGE: align_epochs=100, align_lr=0.001, buffer=1000, l=10
Fair: hidden=4, lam=0.1, y_set=free
FairSoftmax: lam=0.1, y_set=free
FedKSeed: distribution=gaussian, draw=device, estimate=one-sided, mu=0.001, seed_weights=uniform, seeds=512 (paper:
    4096)
FedMSPP: mu=0.01
FedNest: H=1, H_lower=1, N=5, T=5, batch=64, batch_lower=64, exact=False, gamma=0.01, gamma_lower=0.0, series=sum
FedProx: mu=0.01
FedRZOBL: exact=False
FedRZONN: estimate=one-sided, n_p=1
HERON: head_gradient=estimated, rule_by_device=False
HiSo: distribution=gaussian, draw=device, estimate=one-sided, mu=0.001, n_p=16 (paper: 1), nu=0.95
Hyperparameter: held_out=0.2, mu=0.01, x_start=0.1
Kernel: client_memory=none, kernel=auto
KnownSolution: m=5, n=8, noise=0.0
LM: auxiliary_blocks=1, bf16=False, cut=0, label_smoothing=0.1, lora_alpha=32.0, lora_rank=8, lora_targets=('auto',),
    model=gpt2, tf32=False, train=lora
Local: H=10, K=0, batch=64, eta=0.1, gamma=0.01 (paper: 1e-05)|1e-05 (paper: 1e-05), probe=0, schedule=constant,
    weights=uniform, x0=auto, x_set=('problem',)
LocalSGD: batch=64, eta_g=1.0, weights=size
LocalSolve: batch=64, samples=shared, y0=x
LowerSolver: H_lower=auto, T_lower=100 (paper: auto), batch_lower=64, gamma_lower=0.0, lower=local_sgd, y0=last
Optimiser: momentum=0.0, optimiser=adam|adamw_transformers|sgd, weight_decay=0.0|0.01
PFedMe: K=5, alpha_p=0.01, lam_p=15.0
Pace: decay_steps=0, decay_steps_server=0, schedule=constant, warmup=0|500
Precision: bf16=False, tf32=False
Privacy: clip=none, delta=auto, epsilon=none, mechanism=gaussian, noise_multiplier=0.0, participation=fixed,
    trust=server
ProximalTerms: lam=1.0, mu=(1.0,), radius=(inf,)
ReLUNet: hidden=4, lam=0.01, loss_scale=mean, rectifier=10.0
Reporting: personal=False, personal_batch=64, personal_gamma=0.1, personal_mu=1.0, personal_schedule=harmonic,
    personal_schedule_h=sqrt, personal_tau=20.0
ResNet: cut=1, head=linear, norm=batch, stages=(2, 2, 2, 2), width=64
Robust: aggregate=mean, attack=sign, attackers=0.0
RunFlags: checkpoint_every=auto, config=, deadline=0.0, device=auto, devices=, dry_run=False, dtype=float32,
    eval_clients=100, eval_every=10, eval_samples=0, force=False, out=, over_select=1.0, paper=False, quiet=False,
    resume=, round_timeout=0.0, rounds=100, seed=1, server_ranks=1, survive=False, track=, verbose=False
Samples: alpha=inf, data=digits, data_dir=, features=all, m=10, min_samples=10, partition=by_class, pixels=unit,
    server_fraction=0.3, server_lacks=0, server_samples=0, split=random, synthetic_classes=10, synthetic_features=64,
    synthetic_samples=10000, test_fraction=0.1, validation=0.0
Sampling: beta=1.0
Scaffnew: batch=64, gamma_local=0.1, p=0.1, weights=uniform, x0=auto
Scaffold: option=II
ServerRule: server_rule=sgd, tau_g=0.001
ServerStep: gamma=0.0|1.0 (paper: 0.01), schedule=sqrt, server_batch=256, x0=auto
Softmax: kernel=auto
SplitMLP: hidden=(4, 100)
StepSchedule: gamma_local=0.1, schedule_h=sqrt, schedule_local=constant|harmonic, tau=(20.0,)
Texts: alpha=inf, data=e2e, data_dir=, m=3, min_samples=10, part=all, partition=by_class, text=tokenised,
    validation=dev, vocabulary=auto
Toy: lam=1.0, m=10, n=8, noise=0.0, radius=inf
Training: augment=none, batch=32 (paper: 256)|32 (paper: 8), batchnorm=batch, beta=1.0, client_memory=none,
    client_parts=average, freeze=none, h=0|1|10 (paper: 100)|20 (paper: 200), k=1, lr_client=0.0001|0.0002|0.002|0.01,
    lr_server=0.0001|0.0002, merge=1, order=interleave, state=keep, weights=size|uniform
Widths: hidden=(200,)
ZOHFL: divide=m, eta=0.1, exchange=scalars
"""


def test_every_default_is_that_of_the_table() -> None:
    """Of a flag that several methods or problems have with other defaults, all of them; with the paper's value where
    --paper takes another. Mutation: one that moves."""
    found = defaultdict[str, dict[str, set[str]]](lambda: defaultdict(set))
    for leaf in every_flag():
        paper = "" if leaf.paper is None else f" (paper: {leaf.paper})"
        found[leaf.owner.__name__][leaf.name].add(f"{leaf.default}{paper}")
    told = {
        f"{owner}: " + ", ".join(f"{name}={'|'.join(sorted(each))}" for name, each in sorted(own.items()))
        for owner, own in found.items()
        if owner != "Which"  # of method and problem
    }
    assert told == set(DEFAULTS.replace("\n    ", " ").strip().splitlines())
