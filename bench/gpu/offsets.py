#!/usr/bin/env python3
"""Elements beyond 2^31: the last sequence of a large batch must come out as it does alone.

    bench/gpu/offsets.py --library build-cuda/capi/librankone.so

Every tensor of rows has more than 2^31 elements: bf16 with one decay a head and one a channel, forward and
backward (88 sequences of 2,048 tokens with 96 heads of 128), and the float32 path (192 heads of 64). In decoding it
is the states that have: 4,160 sequences with 32 heads of 128 x 128, in float32 and bf16, one token and eight. A
shorter sequence alone is not cut into segments here, so the bits must be equal. Needs about 130 GB of GPU memory.
"""

import argparse
import sys
import time
import types

import needs


def inputs(batch, length, heads, dim, dtype, channel, state=None):
    import torch

    generator = torch.Generator(device="cuda").manual_seed(1)
    normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda", dtype=dtype)
    unit = lambda x: x.div_(x.norm(dim=-1, keepdim=True))
    gates = torch.randn(*((batch, length, heads) + ((dim,) if channel else ())), generator=generator, device="cuda")
    torch.sigmoid(gates, out=gates)
    return types.SimpleNamespace(
        q=unit(normal(batch, length, heads, dim)),
        k=unit(normal(batch, length, heads, dim)),
        v=normal(batch, length, heads, dim),
        g=torch.log(gates, out=gates),
        b=torch.sigmoid(normal(batch, length, heads).float()),
        state=None if state is None else torch.randn(
            batch, heads, dim, dim, generator=generator, device="cuda", dtype=state),
        scale=dim**-0.5,
    )


def last_of(x):
    import torch

    parts = {n: t[-1:].clone() if isinstance(t, torch.Tensor) else t for n, t in vars(x).items()}
    return types.SimpleNamespace(**parts)


def results(library, x, direction):
    """Runs the call; nothing of it but its results is left."""
    import torch

    if direction == "vjp":
        call, outputs = library.vjp(x, x.v)
    elif direction == "step":
        call, o = library.step(x)
        outputs = {"o": o, "state": x.state}
    else:
        call, o = library.forward(x)
        outputs = {"o": o}
    for name, tensor in outputs.items():
        if name != "state":
            tensor.fill_(float("nan"))
    call.run()
    torch.cuda.synchronize()
    return outputs, call.workspace_bytes


def compare(library, title, directions, **sizes):
    import torch

    failed = False
    x = inputs(**sizes)
    alone = last_of(x)
    for direction in directions:
        start = time.time()
        whole, scratch = results(library, x, direction)
        one, _ = results(library, alone, direction)
        different = [n for n, t in whole.items() if not torch.equal(t[-1:], one[n]) or bool(one[n].isnan().any())]
        largest = max(t.numel() for t in whole.values())
        print(f"{title}, {direction}: {', '.join(whole)}, up to {largest / 2**31:.2f} x 2^31 elements, scratch "
              f"{scratch / 1e9:.1f} GB, {time.time() - start:.1f} s: "
              f"{'DIFFERENT from the same alone: ' + ', '.join(different) if different else 'as alone, bit for bit'}",
              flush=True)
        failed = failed or bool(different)
        del whole, one
        torch.cuda.empty_cache()
    del x, alone
    torch.cuda.empty_cache()
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True, metavar="PATH", help="librankone.so, built with CUDA")
    path = parser.parse_args().library
    torch = needs.torch_on("cuda")
    library = needs.library(path, torch.device("cuda"))
    failed = False
    both = ("forward", "vjp")
    large = {"batch": 88, "length": 2048, "heads": 96, "dim": 128, "dtype": torch.bfloat16}
    failed |= compare(library, "bf16, scalar decay", both, channel=False, **large)
    failed |= compare(library, "bf16, channel decay", both, channel=True, **large)
    failed |= compare(library, "float32, scalar decay", both, batch=88, length=2048, heads=192, dim=64,
                      dtype=torch.float32, channel=False)
    for state in (torch.float32, torch.bfloat16):
        for length in (1, 8):
            failed |= compare(library, f"{str(state).split('.')[1]} states, {length} tokens", ("step",), batch=4160,
                              length=length, heads=32, dim=128, dtype=torch.bfloat16, channel=length == 8, state=state)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
