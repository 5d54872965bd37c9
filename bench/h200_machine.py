"""The GPU side of h200_forward.py: tensors, our kernels, the peers, ceilings; needs torch."""

import os
import platform
import statistics
import subprocess
import time

import flashwok_ctypes as fw
import torch

DEVICE = "cuda"
SCRATCH_LIMIT = 64 << 30
LIMIT = 2e-2  # an error above it is a wrong result, not rounding
WARMUP_MS, REP_MS = 10, 30
REST_S = 0.1


def randn(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def smi(fields, *more):
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    return [*command, *more]


def ask_smi(fields):
    try:
        return subprocess.run(
            smi(fields), capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_name():
    with open("/proc/cpuinfo") as lines:
        names = (line.split(": ", 1)[1].strip() for line in lines if line.startswith("model name"))
        return next(names, platform.machine())


class Case:
    """The tensors of a shape, and what runs on them."""

    def __init__(self, library, peers, shape):
        self.library, self._peers, self.shape = library, peers, shape
        rows = (shape.tokens(),) if shape.lengths else (shape.batch, shape.seqlen)
        self.q = randn(*rows, shape.num_heads, shape.head_dim)
        self.k = randn(*rows, shape.num_heads_kv, shape.head_dim)
        self.v = randn(*rows, shape.num_heads_kv, shape.head_dim)
        self.cu = None
        if shape.lengths:
            sums = [sum(shape.lengths[:n]) for n in range(len(shape.lengths) + 1)]
            self.cu = torch.tensor(sums, device=DEVICE, dtype=torch.int32)
        self.o = torch.empty_like(self.q)
        heads = (shape.num_heads, *rows) if shape.lengths else (rows[0], shape.num_heads, rows[1])
        self.lse = torch.empty(heads, device=DEVICE)
        self._reference = self._one_head()

    def ours(self, algorithm):
        """run() of our kernel, and its part of the cell; raises fw.Refused."""
        shape = self.shape
        lengths = {}
        if self.cu is not None:
            cu = fw.from_torch(self.cu)
            lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        problem = self.library.problem(
            q=fw.from_torch(self.q),
            k=fw.from_torch(self.k),
            v=fw.from_torch(self.v),
            causal=fw.BOTTOM_RIGHT if shape.causal else fw.CAUSAL_NONE,
            window_left=shape.window[0],
            window_right=shape.window[1],
            algorithm=fw.ALGORITHMS.index(algorithm),
            **lengths,
        )
        stream = torch.cuda.current_stream().cuda_stream
        execution = self.library.execution(workspace_limit=SCRATCH_LIMIT, stream=stream)
        plan = self.library.plan(problem, execution)
        scratch = torch.empty(max(plan.workspace_bytes, 64), device=DEVICE, dtype=torch.uint8)
        execution.workspace, execution.workspace_bytes = scratch.data_ptr(), scratch.numel()
        o, lse = fw.from_torch(self.o), fw.from_torch(self.lse)
        call = self.library.forward(problem, execution, o=o, lse=lse)

        def run(keep=scratch):
            call()
            return self.o

        self.o.fill_(float("nan"))
        facts = {"kernel": plan.kernel.decode(), "extra_bytes": plan.workspace_bytes}
        facts |= {"tile_q": plan.tile_q, "tile_kv": plan.tile_kv}
        if self.cu is None:  # the formula needs the lengths on the CPU
            read, written = self.library.forward_bytes(problem, execution, o=o, lse=lse)
            facts |= {"model_read": read, "model_written": written}
        return run, facts

    def peers(self):
        """Name and run() of each peer that takes the shape."""
        if self._peers is None:
            return {}
        if self.shape.case == "grid":
            return dict(self._grid_peers())
        return dict(self._extra_peers())

    def _grid_peers(self):
        folder = os.path.dirname(os.path.abspath(self._peers.__file__))
        for name in self._peers.available():
            library = os.path.join(folder, f"libfa3_fwd_d{self.shape.head_dim}.so")
            if name == "fa3" and not os.path.exists(library):
                continue
            tensors = (self.q, self.k, self.v)
            yield name, self._peers.forward(name, *tensors, causal=self.shape.causal)

    def _extra_peers(self):
        shape, q, k, v = self.shape, self.q, self.k, self.v
        fa2 = torch.ops.aten._flash_attention_forward
        longest, causal = shape.seqlen, shape.causal or shape.case == "window"
        window = {}
        if shape.case == "window":
            window = {"window_size_left": shape.window[0], "window_size_right": shape.window[1]}
        if shape.case == "gqa":
            yield "cudnn", lambda: self._peers.sdpa("cudnn", q, k, v, causal)
        cu = (self.cu, self.cu)
        yield "fa2", lambda: fa2(q, k, v, *cu, longest, longest, 0.0, causal, False, **window)[0]
        fa4 = self._peers._fa4()
        if fa4 is None:
            return
        if shape.case == "varlen":
            from flash_attn.cute.interface import flash_attn_varlen_func

            lengths = {"cu_seqlens_q": self.cu, "cu_seqlens_k": self.cu, "causal": causal}
            lengths |= {"max_seqlen_q": longest, "max_seqlen_k": longest}
            yield "fa4", lambda: first(flash_attn_varlen_func(q, k, v, **lengths))
        elif shape.case == "window":
            yield "fa4", lambda: first(fa4(q, k, v, window_size=shape.window))
        else:
            yield "fa4", lambda: first(fa4(q, k, v, causal=causal))

    def _head(self, x, kv):
        """[seqlen, head_dim] of the last sequence's last head, in float32."""
        head = self.shape.num_heads_kv - 1 if kv else self.shape.num_heads - 1
        rows = x[-self.shape.lengths[-1] :] if self.shape.lengths else x[-1]
        return rows[:, head].float()

    def _one_head(self):
        q, k, v = self._head(self.q, False), self._head(self.k, True), self._head(self.v, True)
        s = q @ k.T
        s *= self.shape.head_dim**-0.5
        rows, keys = (torch.arange(len(x), device=DEVICE) for x in (q, k))
        diagonal = keys[None] - rows[:, None]
        left, right = self.shape.window
        right = 0 if self.shape.causal else right
        if right >= 0:
            s.masked_fill_(diagonal > right, float("-inf"))
        if left >= 0:
            s.masked_fill_(diagonal < -left, float("-inf"))
        return torch.softmax(s, -1) @ v

    def errors(self, o):
        """Against float32 on one head; raises ValueError when it is no rounding error."""
        error = self._head(o, False) - self._reference
        found = {"max_error": error.abs().max().item(), "rmse": error.square().mean().sqrt().item()}
        limit = LIMIT * max(1.0, self._reference.abs().max().item() / 4)
        if not found["max_error"] <= limit:
            raise ValueError(f"max error {found['max_error']:.3g}, must be at most {limit:.3g}")
        return found


def first(result):
    return result[0] if isinstance(result, tuple) else result


class Machine:
    def __init__(self, library, peers):
        torch.manual_seed(1)
        torch.set_grad_enabled(False)
        self.library, self._peers = fw.Library(library), peers

    def device(self):
        properties = torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "sm": properties.multi_processor_count,
            "driver": ask_smi("driver_version"),
            "power_limit_w": ask_smi("power.limit"),
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
        }

    def versions(self):
        return {
            "flashwok": self.library.version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": str(torch.backends.cudnn.version()),
        }

    def case(self, shape):
        torch.cuda.empty_cache()
        return Case(self.library, self._peers, shape)

    def sync(self):
        """Raises what a launch before it did wrong."""
        torch.cuda.synchronize()

    def time(self, run):
        """Milliseconds of one launch, the caches flushed before it, after a rest of the card."""
        from triton.testing import do_bench

        time.sleep(REST_S)
        return do_bench(run, warmup=WARMUP_MS, rep=REP_MS, return_mode="median")

    def profile(self, run):
        """A launch with the profiler on, after a mark of its own."""
        cudart = torch.cuda.cudart()
        cudart.cudaProfilerStart()
        torch.cuda._sleep(1)
        run()
        torch.cuda.synchronize()
        cudart.cudaProfilerStop()

    def ceilings(self):
        a, b = randn(8192, 8192), randn(8192, 8192)
        x = torch.empty(1 << 30, device=DEVICE, dtype=torch.uint8)
        y = torch.empty_like(x)
        return {
            "cublas_bf16_tflops": 2 * 8192**3 / self.time(lambda: a @ b) / 1e9,
            "copy_gbps": 2 * x.numel() / self.time(lambda: y.copy_(x)) / 1e6,
        }

    def sustain(self, run, seconds):
        """Milliseconds of a launch among launches that fill `seconds`; clock and power then."""
        count = max(1, round(seconds * 1e3 / self.time(run)))
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        try:
            pipe = subprocess.PIPE
            watch = subprocess.Popen(
                smi("clocks.sm,power.draw", "-lms", "100"), stdout=pipe, text=True
            )
        except OSError:
            watch = None
        begin.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        found = {"launches": count, "ms": begin.elapsed_time(end) / count}
        if watch is not None:
            watch.terminate()
            found |= clock_and_power(watch.communicate()[0])
        return found


def clock_and_power(text):
    """Medians of the later half of nvidia-smi's lines."""
    lines = [line.split(",") for line in text.splitlines()]
    samples = []
    for line in lines:
        try:
            samples.append([float(value) for value in line])
        except ValueError:
            continue
    samples = [sample for sample in samples if len(sample) == 2]
    later = samples[len(samples) // 2 :]
    if not later:
        return {}
    clocks, powers = zip(*later, strict=True)
    return {"clock_mhz": statistics.median(clocks), "power_w": statistics.median(powers)}
