"""The built-in latency profiles: what was published about real deployments, and what was fitted to it.

Data only; profiles.py makes profiles of it. An entry is a profile's dict, except that `rows` may stand for
its times: (running requests, TTFT in ms, ITL in ms) as published. A time in a row is a number (a mean or a
median), ("p95", median, 95th percentile) or ("p99", ...), which becomes a lognormal distribution, or
("std", mean, standard deviation), which becomes a normal one. The text of each source was read when its entry
was written; the note says what its figures are and what was made of them.
"""

_SINGLE_STREAM = (" Fitted: prefill in proportion to the prompt, one request at a time (llama-bench measures no "
                  "more), others queue.")
_GPU_BENCH_SOURCE = "https://github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference"
_DSTACK_SOURCE = "https://github.com/dstackai/benchmarks/blob/main/Deepseek-R1/raw_data/online_results.csv"
_DSTACK_NOTE = ("vLLM rows of the random dataset at 3,200 input and 800 output tokens, 500 requests a level: "
                "mean and standard deviation of TTFT, and of TPOT as each request's ITL.")

PROFILE_TABLE = (
    {
        "name": "llama-3.1-8b-h100",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": "1x NVIDIA H100 80 GB HBM3, vLLM 0.21.0, fp16",
        "source": "https://yobitelcomm.github.io/bench/recipes/concurrency-sweep/",
        "date": "2026-05-16",
        "note": "Table \"Sweep results (concurrency)\" of a short chat workload: ttft_p50_ms, ttft_p99_ms and "
                "tpot_p50_ms at 1, 4, 16 and 64. Fitted: TTFT lognormal through p50 and p99. The source itself "
                "remarks that throughput falls from 16 to 64.",
        "rows": ((1, ("p99", 13.98, 14.95), 6.48),
                 (4, ("p99", 22.75, 32.18), 6.59),
                 (16, ("p99", 41.69, 64.71), 10.94),
                 (64, ("p99", 86.92, 464.7), 46.91)),
    },
    {
        "name": "llama-3.3-70b-2xh100",
        "model": "meta-llama/Llama-3.3-70B-Instruct",
        "hardware": "2x NVIDIA H100 80 GB, NIM 1.8.0 (TensorRT-LLM), fp8, TP2",
        "source": "https://docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance.md",
        "date": "2026-07-20",
        "note": "Tables of NIM 1.8.0 at 5,000/500 and 500/2,000 input/output tokens; the page is undated, the "
                "date is when these docs were last updated. Fitted: prefill through TTFT at concurrency 1 of "
                "both tables (406.77 and 47.77 ms); load curves from the 5,000/500 table up to 50. From 100 on "
                "its ITL stands at 92.9 ms and its throughput at 920 tokens/s: 87 requests run, the rest queue, "
                "which gives back the published TTFT of 8.0, 34.8, 61.7 and 88.6 s at 100, 150, 200 and 250 "
                "within 2 %. Shorter prompts would let more run.",
        "prefill_overhead_ms": 7.9,
        "prefill_ms_per_token": 0.07978,
        "itl_ms": 18.58,
        "max_num_seqs": 87,
        "load": {"ttft": [[1, 1], [5, 1.344], [25, 1.693], [50, 2.052], [87, 2.58]],
                 "itl": [[1, 1], [5, 1.175], [25, 2.086], [50, 3.215], [87, 5.001]]},
    },
    {
        "name": "nemotron-nano-30b-2xb200",
        "model": "NVIDIA Nemotron Nano 30B (3B active)",
        "hardware": "2x NVIDIA B200 179 GB (HGX), vLLM 0.16.0, FP8, TP2",
        "source": "https://docs.vultr.com/inference-cookbook/cuda/optimization/concurrency-tuning",
        "date": "2026-03-11",
        "note": "Table \"Nemotron Nano 30B (FP8, TP=2, 2 GPUs)\" at 2,048 input and 512 output tokens: TTFT and "
                "TPOT. Left out: TTFT at 1 (362 ms, over that at 8: taken for a first request's warm-up; the "
                "value at 8 stands in), the level 32, whose TPOT and throughput fall out of the row, and 1,024, "
                "the same 400 requests as 512.",
        "rows": ((1, 152, 2.91), (8, 152, 3.96), (16, 160, 4.32), (64, 324, 6.74), (128, 520, 8.91),
                 (256, 1254, 11.77), (400, 2610, 15.46)),
    },
    {
        "name": "deepseek-r1-8xh200",
        "model": "deepseek-ai/DeepSeek-R1",
        "hardware": "8x NVIDIA H200 141 GB SXM5, vLLM 0.7.4.dev181, TP8",
        "source": _DSTACK_SOURCE,
        "date": "2025-03-18",
        "note": _DSTACK_NOTE + " Fitted: 64 run at once, as throughput no longer grows from 64 to 128; the queue "
                               "then gives back the published median TTFT at 128 (82.8 s) within 2 %.",
        "max_num_seqs": 64,
        "rows": ((4, ("std", 975.65, 10.93), ("std", 25.73, 0.086)),
                 (8, ("std", 1765.75, 72.69), ("std", 31.281, 0.511)),
                 (16, ("std", 3368.61, 215.86), ("std", 49.601, 2.158)),
                 (32, ("std", 7650.78, 874.88), ("std", 51.67, 1.487)),
                 (64, ("std", 14164.37, 2815.45), ("std", 65.618, 6.335))),
    },
    {
        "name": "deepseek-r1-8xmi300x",
        "model": "deepseek-ai/DeepSeek-R1",
        "hardware": "8x AMD Instinct MI300X 192 GB, vLLM 0.7.3.dev138, TP8",
        "source": _DSTACK_SOURCE,
        "date": "2025-03-18",
        "note": _DSTACK_NOTE + " Beyond 128 the last slope goes on: no saturation was measured.",
        "rows": ((4, ("std", 1259.24, 83.57), ("std", 46.203, 0.211)),
                 (8, ("std", 2231.23, 376.69), ("std", 50.875, 0.637)),
                 (16, ("std", 4261.06, 832.15), ("std", 55.571, 1.29)),
                 (32, ("std", 7110.19, 2328.18), ("std", 61.934, 2.969)),
                 (64, ("std", 12233.67, 5226.09), ("std", 77.968, 6.648)),
                 (128, ("std", 22245.65, 10793.46), ("std", 109.072, 13.54))),
    },
    {
        "name": "qwen2.5-7b-a6000",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "hardware": "1x NVIDIA RTX A6000 48 GB, vLLM 0.23.0",
        "source": "https://ld-singh.github.io/ai-factory-ops-lab/portfolio-lab/06-validation-reports/inference-benchm"
                  "ark-report/",
        "date": "2026-06-27",
        "note": "Tables \"Baseline sweep\" and \"Saturation\" with short prompts and some 51 output tokens: "
                "ttft_p50, ttft_p95, tpot_p50. Fitted: TTFT lognormal through p50 and p95; at 1 constant, as the "
                "source calls its p95 a warm-up. Left out: 8, a burst of 12 requests. 256 run at once (vLLM's "
                "default), which explains TTFT at 512: half of the 512 wait for the other half.",
        "max_num_seqs": 256,
        "rows": ((1, 47, 21.9), (2, ("p95", 67, 68), 22.0), (4, ("p95", 67, 68), 22.1), (64, ("p95", 87, 163), 27.5),
                 (128, ("p95", 126, 325), 36.0), (256, ("p95", 299, 517), 53.1)),
    },
    {
        "name": "llama-3-8b-rtx4090",
        "model": "Llama 3 8B Q4_K_M",
        "hardware": "1x NVIDIA GeForce RTX 4090 24 GB, llama.cpp",
        "source": _GPU_BENCH_SOURCE,
        "date": "2024-05-31",
        "note": "LLaMA 3 table, snapshots in May 2024: pp 512 7,138.99 tokens/s, tg 512 130.58 tokens/s."
                + _SINGLE_STREAM,
        "prefill_ms_per_token": 0.14008,
        "itl_ms": 7.658,
        "max_num_seqs": 1,
    },
    {
        "name": "llama-3-8b-m2-ultra",
        "model": "Llama 3 8B Q4_K_M",
        "hardware": "Apple M2 Ultra, 76-core GPU, 192 GB, llama.cpp (Metal)",
        "source": _GPU_BENCH_SOURCE,
        "date": "2024-05-31",
        "note": "LLaMA 3 table, snapshots in May 2024: pp 512 994.04 tokens/s, tg 512 78.81 tokens/s." + _SINGLE_STREAM,
        "prefill_ms_per_token": 1.006,
        "itl_ms": 12.689,
        "max_num_seqs": 1,
    },
    {
        "name": "llama-3.1-8b-m4",
        "model": "Llama 3.1 8B Q4_K_M",
        "hardware": "Apple M4, 10 cores, 16 GB (Mac mini), llama.cpp (Metal)",
        "source": "https://github.com/brand-o/normiebench/issues/3",
        "date": "2026-03-08",
        "note": "One submitted result: pp512 224.81 tokens/s, tg128 20.87 tokens/s." + _SINGLE_STREAM,
        "prefill_ms_per_token": 4.448,
        "itl_ms": 47.92,
        "max_num_seqs": 1,
    },
    {
        "name": "llama-3.2-3b-i5",
        "model": "Llama 3.2 3B Instruct Q4_K_M",
        "hardware": "Intel Core i5-4278U (2 cores of 2014), 8 GB DDR3L, llama.cpp (CPU, 2 threads)",
        "source": "https://github.com/geerlingguy/ai-benchmarks/issues/53",
        "date": "2026-09-10",
        "note": "llama-bench: pp512 17.70 tokens/s, tg128 7.68 tokens/s." + _SINGLE_STREAM,
        "prefill_ms_per_token": 56.5,
        "itl_ms": 130.2,
        "max_num_seqs": 1,
    },
    {
        "name": "llama-3.1-405b-cerebras",
        "model": "Llama 3.1 405B",
        "hardware": "Cerebras Inference (wafer-scale CS-3)",
        "source": "https://www.tomshardware.com/tech-industry/artificial-intelligence/cerebras-video-shows-ai-writing"
                  "-code-75x-faster-than-worlds-fastest-ai-gpu-cloud-worlds-largest-chip-beats-awss-fastest-in-head-t"
                  "o-head-comparison",
        "date": "2024-11-20",
        "note": "The vendor's claim as reported: 969 tokens per second and 0.24 seconds to the first token, for "
                "one user. ITL is 1000 / 969. Nothing was published about load: none is simulated.",
        "rows": ((1, 240, 1.032),),
    },
)
