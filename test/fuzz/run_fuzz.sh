#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_fuzz.sh TARGET CORPUS SECONDS: fuzzes from a kept corpus; what is found new lies beside the target.
# A finding ends with 1: libFuzzer's own 77 is what Meson takes for a skip.
set -eu
found=$1.corpus
mkdir -p "$found"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}"
exec "$1" -max_total_time="$3" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=256 \
    -max_len=4096 -error_exitcode=1 -print_final_stats=1 -artifact_prefix="$1." "$found" "$2"
