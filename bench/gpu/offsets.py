#!/usr/bin/env python3
"""Elements beyond 2^31: the last sequence of a large batch must come out as it does alone.

    bench/gpu/offsets.py --library build-cuda/capi/librankone.so

128 sequences of 2,048 tokens with 96 heads of 128: 3.2e9 elements a tensor, 6.4 GB each in bf16; the forward
pass and the backward pass (on 48 sequences, whose scratch is larger). A shorter sequence alone is not cut into segments
here, so the bits must be equal.
"""

import argparse
import sys
import types

import needs


def inputs(batch, time, heads, seed):
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)
    unit = lambda x: x.div_(x.float().norm(dim=-1, keepdim=True).to(x.dtype))
    q, k = (unit(normal(batch, time, heads, 128)) for _ in range(2))
    g = torch.nn.functional.logsigmoid(normal(batch, time, heads).float())
    b = torch.sigmoid(normal(batch, time, heads).float())
    return types.SimpleNamespace(q=q, k=k, v=normal(batch, time, heads, 128), g=g, b=b, state=None,
                                 scale=128**-0.5)


def last_of(x):
    import torch

    parts = {n: t[-1:].clone() if isinstance(t, torch.Tensor) else t for n, t in vars(x).items()}
    return types.SimpleNamespace(**parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True, metavar="PATH", help="librankone.so, built with CUDA")
    path = parser.parse_args().library
    torch = needs.torch_on("cuda")
    library = needs.library(path, torch.device("cuda"))
    failed = False
    for direction, batch in (("forward", 128), ("vjp", 48)):
        x = inputs(batch, 2048, 96, 1)
        alone = last_of(x)
        if direction == "forward":
            results = []
            for y in (x, alone):
                call, o = library.forward(y)
                call.run()
                results.append({"o": o})
                del call
        else:
            results = []
            for y in (x, alone):
                call, grads = library.vjp(y, y.v)
                call.run()
                results.append(grads)
                del call
        torch.cuda.synchronize()
        for name, large in results[0].items():
            same = torch.equal(large[-1:], results[1][name])
            failed = failed or not same
            print(f"{direction} {name}: {large.numel():.3g} elements, the last sequence "
                  f"{'as alone, bit for bit' if same else 'DIFFERS from the same alone'}")
        del x, alone, results
        torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
