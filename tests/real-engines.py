"""What only real engines can tell, through Baton. Started by real-engines.sh, which starts the engines.

usage: real-engines.py vllm|sglang GATEWAY METRICS [PART...]     METRICS: the address of the gateway's metrics port

Parts, all by default: `crafted` (what a client may make up about the hand-off), `apis` (each API and shape of request,
compared with a plain engine), `tokens` (what engines tell of a prompt, and what they count), `storm` (clients that leave),
`restart` (engines that end and come back), `control`.
The last line is "N passed, N failed".
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "real"))
sys.dont_write_bytecode = True

import apis  # noqa: E402
import crafted  # noqa: E402
import restart  # noqa: E402
import storm  # noqa: E402
import tokens  # noqa: E402
from pair import Pair  # noqa: E402


def main():
    engine, gateway, metrics = sys.argv[1], sys.argv[2].rstrip("/"), sys.argv[3].rstrip("/")
    parts = sys.argv[4:] or ["crafted", "apis", "tokens", "storm", "restart", "control"]
    pair = Pair(engine, gateway, metrics)
    print(f"note seed {pair.seed}", flush=True)
    try:
        if "crafted" in parts:
            crafted.check(pair)
        if "apis" in parts:
            apis.check(pair)
        if "tokens" in parts:
            tokens.check(pair)
        if "storm" in parts:
            storm.check(pair)
        if "restart" in parts:
            restart.check(pair, "decode", pair.decode)
            restart.check(pair, "prefill", pair.prefill)
        if "control" in parts and engine == "vllm":
            crafted.control(pair)
    finally:
        pair.close()
    print(f"{pair.passed} passed, {pair.failed} failed")
    sys.exit(1 if pair.failed else 0)


if __name__ == "__main__":
    main()
