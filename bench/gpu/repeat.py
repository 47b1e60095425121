#!/usr/bin/env python3
"""The same call gives the same bits, 100 times over and whatever sequences stand beside it.

    bench/gpu/repeat.py --library build-cuda/capi/librankone.so

Forward, vjp and decoding step at shapes that take every kernel of the 16-bit path (split and whole sequences, d_k
64 and 128), with results filled with NaN before each call. Then a batch of sequences against each of them alone. A
sequence that alone is cut into segments, or scanned back by other kernels, may differ there in bits from the same in
a batch: the shapes of the second table are such that neither happens.
"""

import argparse
import sys
import types

import needs

CALLS = 100
SHAPES = ((1, 8192, 16, 128), (8, 2048, 8, 128), (2, 1000, 4, 64), (64, 1, 32, 128))


def inputs(batch, time, heads, dim, channel, seed):
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
    unit = lambda x: (x / x.norm(dim=-1, keepdim=True)).bfloat16()
    gates = (batch, time, heads, dim) if channel else (batch, time, heads)
    return types.SimpleNamespace(
        q=unit(normal(batch, time, heads, dim)),
        k=unit(normal(batch, time, heads, dim)),
        v=normal(batch, time, heads, dim).bfloat16(),
        g=torch.nn.functional.logsigmoid(normal(*gates)),
        b=torch.sigmoid(normal(batch, time, heads)),
        state=normal(batch, heads, dim, dim),
        scale=dim**-0.5,
    )


def calls(library, x):
    """{name: (call, results, tensors to restore before each run)}"""
    call, o = library.forward(x)
    yield "forward", call, {"o": o}, {}
    if x.q.shape[1] == 1:
        call, o = library.step(x)
        yield "step", call, {"o": o, "state": x.state}, {"state": x.state.clone()}
    else:
        call, grads = library.vjp(x, x.v)
        yield "vjp", call, grads, {}


def bits(results):
    return {name: t.clone() for name, t in results.items()}


def run(x, call, results, restore):
    for name, tensor in results.items():
        tensor.copy_(restore[name]) if name in restore else tensor.fill_(float("nan"))
    call.run()


def repeated(library, shape, channel):
    """Names of results that differed."""
    import torch

    x = inputs(*shape, channel, seed=1)
    for direction, call, results, restore in calls(library, x):
        different = set()
        first = None
        for _ in range(CALLS):
            run(x, call, results, restore)
            if first is None:
                first = bits(results)
                if any(t.isnan().any() for t in first.values()):
                    different.add("NaN left in a result")
            different |= {n for n, t in results.items() if not torch.equal(t, first[n])}
        yield direction, sorted(different)


def beside_others(library, shape, channel):
    import torch

    x = inputs(*shape, channel, seed=2)
    for direction, call, results, restore in calls(library, x):
        run(x, call, results, restore)
        together = bits(results)
        different = set()
        for i in range(shape[0]):
            alone = types.SimpleNamespace(**{
                n: t[i : i + 1].contiguous() if isinstance(t, torch.Tensor) else t for n, t in vars(x).items()})
            if "state" in restore:
                alone.state = restore["state"][i : i + 1].clone()
            for other, call_alone, results_alone, restore_alone in calls(library, alone):
                if other != direction:
                    continue
                run(alone, call_alone, results_alone, restore_alone)
                different |= {n for n, t in results_alone.items() if not torch.equal(t, together[n][i : i + 1])}
        yield direction, sorted(different)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True, metavar="PATH", help="librankone.so, built with CUDA")
    path = parser.parse_args().library
    library = needs.library(path, needs.torch_on("cuda").device("cuda"))
    failed = False
    for title, check, shapes in ((f"{CALLS} calls", repeated, SHAPES),
                                 ("beside others", beside_others, ((4, 192, 40, 128), (3, 250, 40, 64), (8, 1, 32, 128)))):
        for shape in shapes:
            for channel in (False, True):
                for direction, different in check(library, shape, channel):
                    failed = failed or bool(different)
                    print(f"{title}, {'x'.join(map(str, shape))}, {'channel' if channel else 'scalar'} decay, "
                          f"{direction}: {'DIFFERENT: ' + ', '.join(different) if different else 'the same bits'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
