"""llama.cpp's own server by xllamacpp. Run by a Python that has that package.

    python llamacpp_server.py MODEL.gguf PORT

Four slots of 1,024 tokens, one thread. The cache is kept in 32-bit floats and attention is the
plain one, so that what it computes can be compared with transformers.
"""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main(model: str, port: int) -> None:
    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.hostnames = ["127.0.0.1"]
    settings.port = port
    settings.n_parallel = 4
    settings.n_ctx = 4 * 1024
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.endpoint_metrics = True
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    # Threads of the server inherit the mask, so the signal reaches the wait above.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(sys.argv[1], int(sys.argv[2]))
