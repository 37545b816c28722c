#!/usr/bin/env bash
# Checks that the OpenAI SDK for Python works with Baton as it works with OpenAI: starts `baton demo` and talks to it.
#
# usage: tests/sdk/run.sh [NAME...]     only the checks whose name contains a NAME
#
# Installs the SDK, at the versions of requirements.txt, into a virtual environment under target/. Uses the binary that
# BATON_BIN names, else a release build if there is one, else a debug build; both are brought up to date first.
# The last line is "N passed, N failed"; the exit status is 0 if none failed.
set -euo pipefail

cd "$(dirname "$0")/../.."
here=tests/sdk

python=${PYTHON:-python3}
if ! "$python" -c 'import venv, ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "the SDK is not checked: needs Python 3.10 or later with venv, as $python or PYTHON"
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
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY OPENAI_API_KEY OPENAI_BASE_URL
export PYTHONDONTWRITEBYTECODE=1
exec timeout --kill-after=20 300 "$venv/bin/python" $here/test_openai.py --baton "$BATON_BIN" "$@"
