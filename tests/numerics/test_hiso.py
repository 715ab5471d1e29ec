"""HiSo: DeComFL along directions over the root of a second moment, which the scalars alone make anew."""

from tests.numerics.split_methods import *
from tests.numerics.test_decomfl import PLAIN, directions, joined, of, planned
from zofl_mpi.methods.decomfl import HiSo, Missed
from zofl_mpi.run.client_memory import Acknowledged, recall

RULES = pytest.mark.parametrize("rule", [PLAIN, SGD], ids=["sgd", "momentum"])


def hiso(plan: Any, **given: Any) -> HiSo:
    return method(HiSo, plan, **given)  # type: ignore[no-any-return]


@RULES
def test_the_recursion_by_hand(rule: Optimiser) -> None:
    """One client, two directions, two local steps, three rounds, in float64.

    Mutations: K for its root; the first local step's G; nu and 1 - nu exchanged; G for G^2; K renewed before the step;
    u for z in the step.
    """
    own = setting(mlp, clients=(2,))
    plan, nu, mu = planned(own, rule), 0.6, 1e-3
    made = hiso(plan, n_p=2, mu=mu, nu=nu)
    found = run(made, 3)
    net = whole_of(mlp)
    x, memory = flat(net), dict[str, Any]()
    K = torch.ones_like(x)

    def loss(at: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> float:
        put(net, at, torch.zeros(0))
        with torch.no_grad():
            return float(cross_entropy(net(inputs), labels))

    for r in range(3):
        for q, (inputs, labels) in enumerate(batches(plan, 0, r)):
            G = torch.zeros_like(x)
            for u in directions(made, r, q):
                z = u / K.sqrt()
                G += (loss(x + mu * z, inputs, labels) - loss(x, inputs, labels)) / mu / 2 * z
            rule.step(x, G, memory, 0.05)
        K = nu * K + (1 - nu) * G * G
    close(joined(made, found), x, 1e-9)
    close(found.optimiser["second_moment"], K, 1e-7)
    assert found.least_second_moment == pytest.approx(float(K.min()))
    assert apart(joined(made, found), joined(made, run(hiso(plan, n_p=2, mu=mu, nu=1.0), 3)))


@RULES
def test_with_nu_1_it_is_decomfl_to_the_bit(rule: Optimiser) -> None:
    plan = planned(setting(mlp, dtype="float32"), rule, beta=0.67)
    one, other = run(hiso(plan, n_p=2, nu=1.0), 4), run(of(plan, n_p=2), 4)
    assert torch.equal(joined(hiso(plan), one), joined(of(plan), other))
    np.testing.assert_array_equal(one.scalars, other.scalars)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_client_that_was_away_has_the_servers_model_and_second_moment_to_the_bit(dtype: str) -> None:
    """Mutations: K of its own scalars; a round's update of K left out or taken twice."""
    made = hiso(planned(setting(mlp, dtype=dtype), SGD, beta=0.67), n_p=2, nu=0.8)
    clients, state, R = LocalClients(list(made.setting.data), method=made), made.start(), 5
    for r in range(R):
        state = made.round(state, r, clients)
    latest = made.training.latest(R)
    assert len(set(latest.values())) > 1, "somebody was away"
    for i, memory in clients.ask(recall, Acknowledged(), counted=False):
        client = Client(i, made.setting.data[i], dict(memory.entries))
        x, moments = made.caught_up(client, Missed(state.scalars[latest.get(i, 0) :], state.buffers, R))
        assert torch.equal(x, joined(made, state))
        for name, value in state.optimiser.items():
            assert torch.equal(torch.as_tensor(moments[name]), torch.as_tensor(value)), name
