"""The gated delta rule token by token in float64, which both sides are held against.

    S~ = diag(exp g) S,   u = b (v - S~^T k),   S = S~ + k u^T,   o = scale * S^T q
"""

import torch


def recurrence(q, k, v, g, b, scale, state=None):
    """q, k [T, H, K]; v [T, H, V]; g [T, H], [T, H, K] or None; b [T, H]; state [H, K, V] or None.
    Returns o [T, H, V] and the last state. Differentiable."""
    time, heads, keys = q.shape
    if state is None:
        state = q.new_zeros(heads, keys, v.shape[-1])
    decay = None
    if g is not None:
        decay = (g if g.dim() == 3 else g.unsqueeze(-1)).exp().unsqueeze(-1)  # [T, H, K or 1, 1]
    outputs = []
    for t in range(time):
        if decay is not None:
            state = decay[t] * state
        read = torch.bmm(k[t].unsqueeze(1), state)  # [H, 1, V]
        u = b[t].view(heads, 1, 1) * (v[t].unsqueeze(1) - read)
        state = torch.baddbmm(state, k[t].unsqueeze(2), u)
        outputs.append(torch.bmm(q[t].unsqueeze(1), state))
    return scale * torch.cat(outputs, 1).transpose(0, 1), state


def part(x, tokens, heads):
    """The last `heads` heads of the last sequence of `x`, its first `tokens` tokens, in float64."""
    def cut(tensor):
        return None if tensor is None else tensor[-1, :tokens, -heads:].double()

    state = None if x.state is None else x.state[-1, -heads:].double()
    return [cut(x.q), cut(x.k), cut(x.v), cut(x.g), cut(x.b)], state


def gradients(inputs, scale, do):
    """Gradients of sum(o * do) by q, k, v, g (where given) and b; `inputs` and do as recurrence()
    takes them. By torch's automatic differentiation."""
    names = [n for n, t in zip("qkvgb", inputs) if t is not None]
    leaves = {n: t.detach().requires_grad_() for n, t in zip("qkvgb", inputs) if t is not None}
    with torch.enable_grad():
        o, _ = recurrence(*(leaves.get(n) for n in "qkvgb"), scale)
        return dict(zip(names, torch.autograd.grad(o, [leaves[n] for n in names], do)))


def relative_error(result, expected):
    """RMS of the difference over the RMS of `expected`, or the RMS of the difference where that is
    zero; computed in float64."""
    difference = (result.double() - expected).square().mean().sqrt()
    size = expected.square().mean().sqrt()
    return float(difference / size if size > 0 else difference)
