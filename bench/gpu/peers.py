"""The other implementations, called as their users call them. q and k are normalised beforehand and
g and b are given, so that all do the same work."""

import importlib.metadata
import os

import torch

# An installed backend would silently take the place of the Triton kernels.
os.environ.setdefault("FLA_FLASH_KDA", "0")
os.environ.setdefault("FLA_FLASH_QLA", "0")


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class Fla:
    """flash-linear-attention (its Triton kernels)."""

    def __init__(self):
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
        from fla.ops.kda import chunk_kda

        self.chunk = {"gdn": chunk_gated_delta_rule, "kda": chunk_kda}
        self.recurrent_gdn = fused_recurrent_gated_delta_rule

    def takes(self, case, gates):
        return True

    def _chunk(self, x, **leaves):
        use = {"q": x.q, "k": x.k, "v": x.v, "g": x.g, "beta": x.b, **leaves}
        return self.chunk["kda" if x.g.dim() == 4 else "gdn"](**use, scale=x.scale)[:1]

    def forward(self, x):
        """A function that computes and returns (o,)."""

        def run():
            with torch.no_grad():
                return self._chunk(x)

        return run

    def forward_backward(self, x):
        """A function that computes o and returns {name: gradient of sum(o * x.do)}."""
        tensors = {"q": x.q, "k": x.k, "v": x.v, "g": x.g, "beta": x.b}
        leaves = {name: t.detach().requires_grad_() for name, t in tensors.items()}

        def run():
            (o,) = self._chunk(x, **leaves)
            grads = torch.autograd.grad(o, list(leaves.values()), x.do)
            return dict(zip("qkvgb", grads))

        return run

    def step(self, x):
        """A function that reads x.state and returns o and a new state."""

        def run():
            with torch.no_grad():
                return self.recurrent_gdn(
                    q=x.q, k=x.k, v=x.v, g=x.g, beta=x.b, scale=x.scale,
                    initial_state=x.state, output_final_state=True,
                )

        return run


class FlashQla(Fla):
    """FlashQLA: the scalar decay on Hopper, with the interface of flash-linear-attention."""

    def __init__(self):
        import flash_qla

        self.chunk = {"gdn": flash_qla.chunk_gated_delta_rule}

    def takes(self, case, gates):
        return case.mixer == "gdn" and case.direction != "step"


class FlashKda:
    """FlashKDA: the forward of the decay by channel, which takes only gates above -5, as bf16 logits,
    and normalises q and k once more."""

    def __init__(self):
        import flash_kda

        self.fwd = flash_kda.fwd

    def takes(self, case, gates):
        return case.mixer == "kda" and case.direction == "forward" and gates == "bounded"

    def forward(self, x):
        heads, keys = x.k.shape[2:]
        a_log, dt_bias = x.b.new_zeros(heads), x.b.new_zeros(heads, keys)

        def run():
            o = torch.empty_like(x.v)
            self.fwd(x.q, x.k, x.v, x.g_logits, x.b_logits, x.scale, o, a_log, dt_bias, x.bound)
            return (o,)

        return run


PEERS = {
    "fla": (Fla, ("fla-core", "flash-linear-attention")),
    "flash-qla": (FlashQla, ("flash-qla",)),
    "flash-kda": (FlashKda, ("flash-kda", "tokenspeed-flashkda")),
}


def find():
    """{name: peer} of those that are installed, and a note on each of the others."""
    found, notes = {}, []
    for name, (kind, packages) in PEERS.items():
        if not any(version(package) for package in packages):
            notes.append(f"{name} is not compared: not installed (pip install {packages[-1]})")
            continue
        try:
            found[name] = kind()
        except Exception as error:  # a broken installation is reported, not raised
            notes.append(f"{name} is not compared: {type(error).__name__}: {error}")
    return found, notes


def versions():
    every = [package for _, packages in PEERS.values() for package in packages]
    return {package: version(package) for package in every if version(package)}
