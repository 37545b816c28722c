#!/usr/bin/env bash
# Baton in front of real prefill and decode engines on a CPU: a vLLM pair (NIXL) and an SGLang pair (Mooncake over TCP).
#
# usage: tests/real-engines.sh DIR [vllm|sglang|all]
#
# DIR is where the recipe's setup.sh put the engines and the model; what is missing there is installed first (6 GB for
# vLLM, 11 GB more for SGLang). One pair runs at a time: three engines, up to 7 GB of memory, up to some minutes to start.
#
# For each pair: the recipe's drive.py sends ordinary requests through the gateway, compares each text with that of a
# plain engine, and asks the engines' own counters whether the KV moved. real-engines.py then sends what a client may have
# made up to end the decode engine, compares every API and shape of request with the plain engine, compares what /tokenize
# tells of a prompt with what the engine counts, lets crowds of clients
# leave at every stage and asks the engines whether they hold KV for anybody, and kills each engine and brings it back.
# The last line is "N passed, N failed"; the status is 0 if none failed.
#
# Settings: RECIPE, the directory with setup.sh, run_pair.sh and drive.py (default: ../shared/real-engine beside this
# repository); BATON_BIN (default: a release build if there is one, else a debug build); LOG_DIR (default:
# target/real-engines); ROUNDS of drive.py (default: 3); START_TIMEOUT in seconds (default: 900); PARTS of real-engines.py
# (default: all).
set -euo pipefail

usage="usage: tests/real-engines.sh DIR [vllm|sglang|all]"
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Inside a running pair: start the gateway in front of it, check, stop the gateway.
behind() { # ENGINE RECIPE
    local engine=$1 drive=$2/drive.py gateway baton
    [ "$engine" = vllm ] || drive=$2/$engine/drive.py
    local port metrics
    read -r port metrics < <("$PAIR_PYTHON" -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))')
    gateway=http://127.0.0.1:$port

    local flags=(--pd-disaggregation --host 127.0.0.1 --port "$port"
        --prometheus-host 127.0.0.1 --prometheus-port "$metrics"
        --health-check-interval-secs 5 --cb-timeout-duration-secs 10
        # Only requests that ask for AIBrix's pd go by that; the part `tokens` does. Slow cores take their time.
        --tokenizer-path engine --tokenize-timeout-ms 20000 --explain-header)
    if [ "$engine" = sglang ]; then
        flags+=(--prefill "$PREFILL_URL" "$BOOTSTRAP_PORT" --decode "$DECODE_URL")
    fi
    AIBRIX_PROMPT_LENGTH_BUCKETING=true "$BATON_BIN" launch "${flags[@]}" >"$LOG_DIR/baton.log" 2>&1 &
    baton=$!
    # shellcheck disable=SC2064
    trap "kill -TERM $baton 2>/dev/null; sleep 0.2; kill -TERM $baton 2>/dev/null; wait $baton 2>/dev/null || true" EXIT

    wait_for "$gateway/liveness" 20
    if [ "$engine" = vllm ]; then
        # A vLLM server does not tell over HTTP which connector it uses.
        register "$gateway" "$PREFILL_URL" prefill
        register "$gateway" "$DECODE_URL" decode
    fi
    wait_for "$gateway/readiness" 60
    echo "gateway ready: $gateway"

    local failed=0
    step "$PAIR_PYTHON" "$drive" --gateway "$gateway" --rounds "${ROUNDS:-3}"
    # shellcheck disable=SC2086
    step "$PAIR_PYTHON" "$top/tests/real-engines.py" "$engine" "$gateway" "http://127.0.0.1:$metrics" ${PARTS:-}
    return $failed
}

step() {
    echo "-- $(basename "$2")"
    timeout --foreground --kill-after=10 2400 "$@" || { echo "FAILED step $(basename "$2")"; failed=1; }
}

register() { # GATEWAY URL ROLE
    curl -sSf -o /dev/null "$1/workers" -H 'content-type: application/json' \
        -d "{\"url\": \"$2\", \"worker_type\": \"$3\", \"kv_connector\": \"NixlConnector\"}"
}

wait_for() { # URL SECONDS
    local deadline=$((SECONDS + $2))
    until curl -sf -o /dev/null --max-time 2 "$1"; do
        if ((SECONDS >= deadline)); then
            echo "FAILED: $1 did not answer 200 within $2 s; last lines of the gateway's log:"
            tail -n 20 "$LOG_DIR/baton.log"
            exit 1
        fi
        sleep 0.2
    done
}

if [ "${1:-}" = --behind ]; then
    behind "$2" "$3"
    exit
fi

dir=${1:?$usage}
which=${2:-all}
case $which in
    vllm | sglang) engines=("$which") ;;
    all) engines=(vllm sglang) ;;
    *) echo "$usage" >&2 && exit 2 ;;
esac
recipe=${RECIPE:-$top/../shared/real-engine}
if [ ! -x "$recipe/run_pair.sh" ]; then
    echo "no run_pair.sh in $recipe: set RECIPE" >&2
    exit 2
fi
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

install() { # ENGINE
    if [ ! -x "$dir/venv/bin/python" ] || [ ! -e "$dir/model/model.safetensors" ]; then
        "$recipe/setup.sh" "$dir"
    fi
    if [ "$1" = sglang ] && [ ! -x "$dir/sglang-venv/bin/python" ]; then
        "$recipe/sglang/setup.sh" "$dir"
    fi
}

if [ -z "${BATON_BIN:-}" ]; then
    if [ -x "$top/target/release/baton" ]; then
        (cd "$top" && cargo build --locked --quiet --release)
        BATON_BIN=$top/target/release/baton
    else
        (cd "$top" && cargo build --locked --quiet)
        BATON_BIN=$top/target/debug/baton
    fi
fi
BATON_BIN=$(cd "$(dirname "$BATON_BIN")" && pwd)/$(basename "$BATON_BIN")
export BATON_BIN

group=
# The pair, the gateway and all that they started share a process group of their own.
sweep() {
    [ -n "$group" ] || return 0
    kill -TERM -- "-$group" 2>/dev/null || true
    for _ in $(seq 200); do
        kill -0 -- "-$group" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL -- "-$group" 2>/dev/null || true
    group=
}
trap sweep EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

logs=${LOG_DIR:-$top/target/real-engines}
export START_TIMEOUT=${START_TIMEOUT:-900}
passed=0 failed=0
for engine in "${engines[@]}"; do
    install "$engine"
    venv=$dir/venv pair=$recipe/run_pair.sh
    [ "$engine" = vllm ] || venv=$dir/$engine-venv pair=$recipe/$engine/run_pair.sh
    export PAIR_PYTHON=$venv/bin/python LOG_DIR=$logs/$engine
    mkdir -p "$LOG_DIR"
    said=$LOG_DIR/check.log
    echo "== $engine: starting three engines, logs in $LOG_DIR"
    setsid nice -n 10 "$pair" "$venv" "$dir/model" "$top/tests/real-engines.sh" --behind "$engine" "$recipe" >"$said" 2>&1 &
    group=$!
    tail -n +1 -f --pid="$group" "$said" &
    shown=$! status=0
    wait "$group" || status=$?
    wait "$shown" || true
    sweep
    passed=$((passed + $(grep -c '^ok ' "$said" || true)))
    if ((status)); then
        failed=$((failed + 1))
        echo "== $engine: FAILED with status $status"
    else
        echo "== $engine: ok"
    fi
done
echo "$passed passed, $failed failed"
exit $((failed > 0))
