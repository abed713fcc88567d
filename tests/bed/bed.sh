#!/bin/sh
# Three hosts to log in to: bed.sh up | status | down
bed=$(dirname -- "$(readlink -f -- "$0")")
root=$(dirname -- "$(dirname -- "$bed")")
if [ -z "$PYTHON" ]; then
    PYTHON=python3
    if [ -x "$root/.venv/bin/python" ]; then PYTHON=$root/.venv/bin/python; fi
fi
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$PYTHON" "$bed/bed.py" "$@"
