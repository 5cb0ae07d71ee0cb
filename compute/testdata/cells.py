"""Cells that torch.nn has not, as layers with the names of its tensors. Peepholes are
weight_peephole_l0 of [P*H], leaks weight_leak_l0 of [H].

A step takes the input's sums a = W_ih x + b_ih of all gates, h and c, u = W_hh, d = b_hh and the
peepholes p, and returns the next h and c."""
import torch
from torch import nn
from torch import sigmoid, tanh


def peephole(a, h, c, u, d, p):
    p_i, p_f, p_o = p.chunk(3)
    i, f, g, o = (a + h @ u.T + d).chunk(4, -1)
    i, f = sigmoid(i + p_i * c), sigmoid(f + p_f * c)
    c = f * c + i * tanh(g)
    return sigmoid(o + p_o * c) * tanh(c), c


def coupled(a, h, c, u, d, p):
    i, g, o = (a + h @ u.T + d).chunk(3, -1)
    c = (1 - sigmoid(i)) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def no_forget(a, h, c, u, d, p):
    i, g, o = (a + h @ u.T + d).chunk(3, -1)
    c = c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def mgu(a, h, c, u, d, p):
    (a_f, a_n), (u_f, u_n), (d_f, d_n) = a.chunk(2, -1), u.chunk(2), d.chunk(2)
    f = sigmoid(a_f + h @ u_f.T + d_f)
    return (1 - f) * h + f * tanh(a_n + (f * h) @ u_n.T + d_n), c


def leaky(a, h, c, u, d, p):
    return h / 2 + tanh(a + h @ u.T + d) / 2, c


def leaky_learned(a, h, c, u, d, p):
    return (1 - sigmoid(p)) * h + sigmoid(p) * tanh(a + h @ u.T + d), c


def min_gru(a, h, c, u, d, p):
    z, n = a.chunk(2, -1)
    return (1 - sigmoid(z)) * h + sigmoid(z) * n, c


PERIODS = 1, 2, 4, 8


def clockwork(a, h, c, u, d, p):
    """c counts the steps of each unit's period. A group reads itself and those behind it."""
    width = h.shape[1]
    group = torch.arange(width) * len(PERIODS) // width
    period = torch.tensor(PERIODS)[group]
    new = tanh(a + h @ (u * (group[:, None] <= group)).T + d)
    return torch.where(c == 0, new, h), (c + 1) % period


CELLS = {  # gates, peepholes, step
    "lstm-peephole": (4, 3, peephole),
    "lstm-coupled": (3, 0, coupled),
    "lstm-no-forget": (3, 0, no_forget),
    "mgu": (2, 0, mgu),
    "leaky": (1, 0, leaky),
    "leaky-learned": (1, 1, leaky_learned),
    "min-gru": (2, 0, min_gru),
    "clockwork": (1, 0, clockwork),
}


class Layers(nn.Module):
    def __init__(self, cell, width, hidden, layers=1):
        super().__init__()
        self.hidden, self.layers = hidden, layers
        gates, peepholes, self.step = CELLS[cell]
        hidden_gates = 0 if cell == "min-gru" else gates  # of W_hh and b_hh
        self.elementwise = "weight_leak" if cell == "leaky-learned" else "weight_peephole"
        for k in range(layers):
            shapes = {"weight_ih": (gates * hidden, hidden if k else width),
                      "weight_hh": (hidden_gates * hidden, hidden), "bias_ih": (gates * hidden,),
                      "bias_hh": (hidden_gates * hidden,), self.elementwise: (peepholes * hidden,)}
            for name, shape in shapes.items():
                if shape[0] > 0:
                    bound = hidden**-0.5
                    self.register_parameter(
                        f"{name}_l{k}", nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, x):
        for k in range(self.layers):
            w, u, b, d, p = (getattr(self, f"{name}_l{k}", None) for name in (
                "weight_ih", "weight_hh", "bias_ih", "bias_hh", self.elementwise))
            h = c = x.new_zeros(x.shape[1], self.hidden)
            steps = []
            for row in x:
                h, c = self.step(row @ w.T + b, h, c, u, d, p)
                steps.append(h)
            x = torch.stack(steps)
        return x, (h, c)
