"""GPU time in a CUDA graph, with the L2 cache flushed before each run and warm, and of eager calls."""

import statistics
import time

import torch

RUNS = 30
WARM_MICROSECONDS = 400  # of work in one graph of the warm timing, and between two eager events


def quantiles(times):
    times = sorted(times)
    at = lambda share: times[int(share * (len(times) - 1))]
    return {"median_us": at(0.5), "low_us": at(0.2), "high_us": at(0.8)}


def _between_events(work):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return 1e3 * start.elapsed_time(stop)


def _graph(work, copies):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            work()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def time_work(work, flush):
    """`work` puts one call on the current stream; `flush` is a tensor larger than the L2 cache."""
    side = torch.cuda.Stream()  # a capture wants its warm-up on another stream
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()

    once = _graph(work, 1)
    flushed = []
    for i in range(RUNS):
        flush.fill_(i)  # also enough work ahead that the graph does not wait for the host
        flushed.append(_between_events(once.replay))
    copies = max(1, min(64, int(WARM_MICROSECONDS / statistics.median(flushed))))
    many = once if copies == 1 else _graph(work, copies)
    warm = [_between_events(many.replay) / copies for _ in range(RUNS)]

    eager, host = [], []
    calls = min(copies, 20)
    for _ in range(RUNS):
        torch.cuda.synchronize()

        def several():
            start = time.perf_counter()
            for _ in range(calls):
                work()
            host.append(1e6 * (time.perf_counter() - start) / calls)

        eager.append(_between_events(several) / calls)
    return {
        "graph": quantiles(flushed),
        "graph_warm": quantiles(warm),
        "eager": quantiles(eager),
        "host_us": statistics.median(host),
    }


def ceilings():
    """What this GPU copies (read and written, GB/s) and multiplies (bf16, TFLOP/s) today."""
    a = torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    copy = statistics.median(_between_events(lambda: b.copy_(a)) for _ in range(10))
    bytes_moved = 2 * a.numel()
    del a, b
    n = 8192
    x, y = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    product = statistics.median(_between_events(lambda: x @ y) for _ in range(10))
    return {"copy_gb_per_s": 1e-3 * bytes_moved / copy, "bf16_tflop_per_s": 2e-6 * n**3 / product}
