#!/usr/bin/env bash
# Checks that the OpenAI and the Anthropic SDK for Python work with Baton as they do with what they were made for: starts
# `baton demo` and talks to it.
#
# usage: tests/sdk/run.sh [NAME...]     only the checks whose name contains a NAME
#
# Installs the SDKs, at the versions of requirements.txt, into a virtual environment under target/. Uses the binary that
# BATON_BIN names, else a release build if there is one, else a debug build; both are brought up to date first.
# The last line is "N passed, N failed"; the exit status is 0 if none failed.
set -euo pipefail

cd "$(dirname "$0")/../.."
here=tests/sdk

python=${PYTHON:-python3}
if ! "$python" -c 'import venv, ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "the SDKs are not checked: needs Python 3.10 or later with venv, as $python or PYTHON"
    echo "0 passed, 0 failed"
    exit 0
fi

mark=$(cksum <$here/requirements.txt | cut -d' ' -f1)
venv=target/sdk/venv-$mark
if [ ! -e "$venv/ready" ]; then
    "$python" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --no-input --disable-pip-version-check --no-deps -r $here/requirements.txt
    touch "$venv/ready"
fi

if [ -z "${BATON_BIN:-}" ]; then
    if [ -x target/release/baton ]; then
        cargo build --release --locked --quiet
        BATON_BIN=target/release/baton
    else
        cargo build --locked --quiet
        BATON_BIN=target/debug/baton
    fi
fi

# Neither a proxy nor a key of the user's has any business here.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
unset OPENAI_API_KEY OPENAI_BASE_URL ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL
export PYTHONDONTWRITEBYTECODE=1

passed=0 failed=0 status=0
for sdk in openai anthropic; do
    echo "== $sdk"
    log=target/sdk/$sdk.log
    timeout --kill-after=20 300 "$venv/bin/python" $here/test_$sdk.py --baton "$BATON_BIN" "$@" | tee "$log" || status=1
    read -r ok _ bad _ < <(tail -n 1 "$log") || true
    if [[ ! "$ok $bad" =~ ^[0-9]+\ [0-9]+$ ]]; then
        echo "$sdk: did not come to its end" && ok=0 bad=1 status=1
    fi
    passed=$((passed + ok)) failed=$((failed + bad))
done
echo "$passed passed, $failed failed"
exit "$status"
