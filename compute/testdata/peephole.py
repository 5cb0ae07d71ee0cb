"""The LSTM with peepholes of Gers and Schmidhuber (2000), which torch.nn has not, with its names:
torch.nn.LSTM's, and weight_peephole_l0 of [3*H], for the gates i, f and o."""
import torch
from torch import nn


class PeepholeLSTM(nn.Module):
    def __init__(self, width, hidden, layers=1):
        super().__init__()
        self.hidden, self.layers = hidden, layers
        for k in range(layers):
            for name, shape in (("weight_ih", (4 * hidden, hidden if k else width)),
                                ("weight_hh", (4 * hidden, hidden)), ("bias_ih", (4 * hidden,)),
                                ("bias_hh", (4 * hidden,)), ("weight_peephole", (3 * hidden,))):
                bound = hidden**-0.5
                self.register_parameter(
                    f"{name}_l{k}", nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, x):
        for k in range(self.layers):
            w, u, b, d, p = (getattr(self, f"{name}_l{k}") for name in (
                "weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_peephole"))
            p_i, p_f, p_o = p.chunk(3)
            h = c = x.new_zeros(x.shape[1], self.hidden)
            steps = []
            for row in x:
                i, f, g, o = (row @ w.T + b + h @ u.T + d).chunk(4, -1)
                i, f = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c)
                c = f * c + i * torch.tanh(g)
                h = torch.sigmoid(o + p_o * c) * torch.tanh(c)
                steps.append(h)
            x = torch.stack(steps)
        return x, (h, c)
