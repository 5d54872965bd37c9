"""Ctrl-C ends a long call."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import flashwok

PROGRAM = """
import numpy as np, flashwok, time
q = np.zeros((1, {seqlen}, 8, 128), np.float32)
print("start", flush=True)
try:
    flashwok.attention(q, q, q, num_threads={threads})
except KeyboardInterrupt:
    print("interrupted", flush=True)
small = q[:, :64]
assert flashwok.attention(small, small, small).shape == small.shape
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c(threads):
    # Minutes of work, of which seconds are done.
    program = PROGRAM.format(seqlen=60_000, threads=threads)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "start\n"
    time.sleep(1)
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert output == "interrupted\n"
    assert child.returncode == 0
    assert time.monotonic() - start < 30


def test_a_handler_that_returns_ends_nothing(qkv):
    """Its work is done during the call, which goes on."""
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(time.monotonic()))
    try:
        q, k, v = qkv(batch=1, seqlen_q=6000, seqlen_k=6000, heads=8, heads_kv=8, head_dim=64)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        o = flashwok.attention(q, k, v, num_threads=1)
        end = time.monotonic()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert calls
    assert calls[0] < end
    assert np.isfinite(o).all()
